"""The JSON of a run's page: its charts, incidents, lanes of attempts and discards, and flags.

Also how to record what a run lacks.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, BoolArray, Column
from trimtab.core.signals import DISCARDED, EVAL_LOSS
from trimtab.core.text import counted
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.time_use import lost_records
from trimtab.report.pages.series import (
    BUCKETS,
    RunLines,
    evaluation_losses,
    heat_map,
    shared_axis,
    short,
    short_names,
    stretches,
)
from trimtab.report.run_report import RunReport
from trimtab.report.wording import QUIET, event_text, short_cause, tone

MAX_LINES = 6
"""Groups drawn as lines of one chart; more are a heat map."""

MAX_POINTS, FEW = 100, 8
"""Measurements up to which a signal that most records lack is drawn as points, and records for each
of them from which on it counts as such. Chosen: more points than these are a line to the eye."""

MAX_OTHERS = 40
"""Signals without a chart of their own that are drawn too."""

_TELEMETRY = "trimtab.watch records it in some steps (live.telemetry_every)"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the page."""

    title: str
    how: str
    """How to record it, in one sentence; nothing if only some kinds of runs have it."""
    names: tuple[str, ...] = ()
    """Its signals; those that were recorded are drawn."""
    family: str = ""
    """Prefix of further signals of the same chart, one per group or layer."""
    is_heat: bool = False
    """Whether the family is always a heat map."""


_NORM = "clip with guard.clip_grad_norm_(...), or log the norm before clipping as grad_norm"
_RATE = "trimtab.watch records it; in other logs, log it as lr"
_BLOCKS = f"{_TELEMETRY}, unless live.activations is off"
_SCALE = 'only fp16 has one: trimtab.watch(..., state={"scaler": scaler})'
_SECONDS = "trimtab.watch records it; waiting for data needs guard.steps(loader)"
_TOKENS = "guard.steps(loader) with batches that are still on the host"
_LOGITS = (signals.MAX_LOG_Z, signals.MAX_LOGIT, signals.LOGIT_ENTROPY)
_LARGEST = signals.MAX_ATTENTION_LOGIT

PANELS = (
    Panel(
        "loss", "guard.record(loss=...)", (signals.LOSS, signals.REFERENCE_LOSS, signals.EVAL_LOSS)
    ),
    Panel("gradient norm", _NORM, (signals.GRAD_NORM, signals.CLIPPED_GRAD_NORM)),
    Panel("learning rate", _RATE, (signals.LR, signals.PLANNED_LR)),
    Panel("reward", "", (signals.REWARD, signals.EVAL_REWARD), f"{signals.REWARD}/"),
    Panel("KL", "", (signals.KL,)),
    Panel("entropy", "", (signals.ENTROPY,)),
    Panel("response length", "", (signals.RESPONSE_LENGTH,)),
    Panel("clip fraction", "", (signals.CLIP_FRACTION,)),
    Panel("groups without signal", "", (signals.NO_SIGNAL_SHARE,)),
    Panel("truncated responses", "", (signals.TRUNCATED_SHARE,)),
    Panel("log-probability gap of rollouts", "", (signals.LOGPROB_GAP,)),
    Panel("share of the busiest expert", "", (), signals.EXPERT_MAX_SHARE),
    Panel("share of dead experts", "", (), signals.DEAD_EXPERTS),
    Panel("router entropy, 1 is even", "", (), signals.ROUTER_ENTROPY),
    Panel("balancing loss", "", (signals.BALANCING_LOSS,), f"{signals.BALANCING_LOSS}/"),
    Panel("weight norm", _TELEMETRY, (signals.PARAM_NORM,), "param_norm/"),
    Panel("update norm", _TELEMETRY, (signals.UPDATE_NORM,), "update_norm/"),
    Panel("Adam second moment, norm", _TELEMETRY, (signals.ADAM_V_NORM,), "adam_v_norm/"),
    Panel("gradient norm by group and layer", _TELEMETRY, (), signals.GRAD_NORM_OF, True),
    Panel("update / weight by layer", _TELEMETRY, (), signals.LAYER_UPDATE_RATIO, True),
    Panel("attention logits, largest", _TELEMETRY, (_LARGEST,), f"{_LARGEST}/", True),
    Panel("output logits", _TELEMETRY, _LOGITS),
    Panel("activations by layer", _BLOCKS, (), signals.ACTIVATION_RMS, True),
    Panel("loss scale", _SCALE, (signals.LOSS_SCALE,)),
    Panel("tokens per second", "guard.record(tokens=...)", (signals.TOKENS_PER_SECOND,)),
    Panel("seconds per step", _SECONDS, (signals.STEP_SECONDS, signals.DATA_SECONDS)),
    Panel(
        "token losses, share by nats",
        "guard.record(token_loss=...)",
        family=signals.TOKEN_LOSS_SHARE,
        is_heat=True,
    ),
    Panel("token rarity", _TOKENS, (signals.TOKEN_RARITY,)),
)

_NOT_DRAWN = signals.NO_CURVES | {signals.CLOCK, signals.DISCARDED, signals.TOKENS}
"""Signals that are no curve: times, checksums, flags; discards have their own lane."""


def make_charts(lines: RunLines) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Return the charts as JSON values; and, by how to record it, what was not recorded."""
    recorded = [name for name, column in lines.block.columns.items() if column.recorded]
    charts: list[dict[str, Any]] = []
    missing: dict[str, list[str]] = {}
    drawn: set[str] = set()
    for panel in PANELS:
        own = [name for name in panel.names if name in recorded]
        family = [n for n in recorded if panel.family and n.startswith(panel.family)]
        if own and len(family) == 1:
            family = []  # one group is the whole model: the same line again
        drawn.update(own, family)
        if not own and not family:
            if panel.how:
                missing.setdefault(panel.how, []).append(panel.title)
            continue
        is_heat = panel.is_heat or len(family) > MAX_LINES
        names = own if is_heat else own + family
        if names:
            chart = make_chart(lines, panel.title, names)
            members = short_names([name.removeprefix(panel.family) for name in family])
            labels = dict(zip(family, members, strict=True))
            for line in chart["series"]:
                line["label"] = labels.get(line["label"], line["label"])
            if panel.title == signals.REWARD:
                chart["log"] = False  # a reward is read as a share, and 0 is where it ends
            charts.append({**chart, "total": True} if own and names != own else chart)
        shares = panel.family == signals.TOKEN_LOSS_SHARE
        if is_heat and (heat := heat_map(lines, family, panel.family, is_histogram=shares)):
            more = "" if not own else " by layer" if panel.is_heat else " by group"
            title = f"{panel.title}{more}"
            charts.append({"kind": "heat", "title": title, **heat})
    others = [n for n in recorded if n not in drawn | _NOT_DRAWN and not n.startswith("lr/")]
    # Short names first: totals before the groups and layers of the same signal.
    for name in sorted(others, key=lambda n: (n.count("/"), n))[:MAX_OTHERS]:
        charts.append({**make_chart(lines, name, [name], BUCKETS // 4), "other": True})
    return charts, missing


def make_chart(
    lines: RunLines, title: str, names: Sequence[str], buckets: int = BUCKETS
) -> dict[str, Any]:
    """Return one chart of lines."""
    block = lines.block
    share = max(buckets // max(len(names), 1), BUCKETS // 8)
    values = [block.column(name).values[block.column(name).finite] for name in names]
    chart: dict[str, Any] = {
        "kind": "lines",
        "title": title,
        "series": [lines.line(name, buckets if n == 0 else share) for n, name in enumerate(names)],
        **shared_axis(values),
    }
    notes = [
        f"{name} is {block.quality(name).label}"
        for name in names
        if block.quality(name) is not signals.Quality.RAW
    ]
    for line, measured in zip(chart["series"], values, strict=True):
        # Between two measurements far apart nothing is known: a line would draw it.
        if 0 < len(measured) <= MAX_POINTS and len(measured) * FEW < len(block):
            line["points"] = True
            notes.append(f"{line['label']} was measured {counted(len(measured), 'time')}")
    if notes:
        chart["note"] = ", ".join(notes)
    return chart


GOODPUT = "goodput"

MAX_INCIDENTS = 200
MAX_EVENTS = 400

_KEPT, _GONE, _DISCARDED = 0, 1, 2
"""How a stretch of steps is drawn."""


def run_data(
    report: RunReport, live: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return what the scripts draw; and, by how to record it, what was not recorded."""
    worst_first = report.by_severity()
    ticks = [(i.incident.onset.tick, i.incident.last.tick) for i in worst_first]
    lines = RunLines.of(report.block, ticks)
    charts, missing = make_charts(lines)
    # Of a policy the reward is what counts; beside it, its losses say little.
    charts.sort(key=lambda chart: chart["title"] != signals.REWARD)
    _add_evaluations(charts, report.block)
    charts += _goodput(report, lines)
    data = {
        "charts": charts,
        "incidents": [_span(incident) for incident in report.incidents[:MAX_INCIDENTS]],
        "lanes": _lanes(lines),
        "flags": list(_flags(report)),
        **({"live": dict(live)} if live else {}),
    }
    return data, missing


def _span(diagnosis: Diagnosis) -> dict[str, Any]:
    incident = diagnosis.incident
    last = incident.end or incident.last
    return {
        "number": incident.number,
        "first": incident.onset.step,
        "last": max(last.step, incident.onset.step),
        "tone": tone(diagnosis),
        "text": f"{diagnosis.incident_class}: {incident.main_symptom}; {short_cause(diagnosis)}",
    }


def _lanes(lines: RunLines) -> list[dict[str, Any]]:
    """Return the attempts and the discarded steps, as stretches of steps."""
    lanes = []
    if len(lines.attempts) > 1:
        kept, gone = [], []
        for number, (first, last) in enumerate(lines.attempts, start=1):
            is_gone = lines.is_gone[first:last]
            kept += _steps(lines, ~is_gone, first, [_KEPT, number])
            gone += _steps(lines, is_gone, first, [_GONE, number])
        lanes += [{"title": "attempts", "spans": kept}, {"title": "repeated", "spans": gone}]
    column = lines.block.column(DISCARDED)
    discarded = _steps(lines, column.present & (column.values > 0), 0, [_DISCARDED, 0])
    if discarded:
        lanes.append({"title": "discarded", "spans": discarded})
    return lanes


def _steps(lines: RunLines, mask: BoolArray, offset: int, more: list[int]) -> list[list[int]]:
    """Return first and last step of each stretch of a mask that begins at row `offset`."""
    steps = lines.block.step[offset:]
    return [[int(steps[a]), int(steps[b]), *more] for a, b in stretches(mask)]


def _flags(report: RunReport) -> Iterator[list[Any]]:
    shown = [event for event in report.block.events if event.kind not in QUIET][:MAX_EVENTS]
    for event in shown:
        yield [event.step, event.kind, event_text(event)]


def _goodput(report: RunReport, lines: RunLines) -> list[dict[str, Any]]:
    """Return the chart of the share of steps kept so far, if any was lost."""
    block = lines.block
    is_lost = lost_records(block, report.judged) | lines.is_gone
    if report.format != "journal" or not is_lost.any():
        return []
    share = np.cumsum(~is_lost) / np.arange(1, len(block) + 1)
    column = {GOODPUT: Column.complete(share)}
    derived = RunLines.of(dataclasses.replace(block, columns=column, qualities={}))
    chart = make_chart(derived, "goodput, share of steps kept so far", [GOODPUT])
    # The share is over all attempts: it has no earlier ones to draw beside it.
    for line in chart["series"]:
        line.pop("gone", None)
    return [{**chart, "log": False}]


def _add_evaluations(charts: list[dict[str, Any]], block: Block) -> None:
    """Add the losses of evaluations, which are events, as points to the chart of the loss."""
    # A run that records the evaluation loss as a signal has it in the chart already.
    for line in (one for chart in charts for one in chart.get("series", ())):
        if line.get("label") == EVAL_LOSS:
            line["points"] = True
    found = {} if block.column(EVAL_LOSS).recorded else evaluation_losses(block)
    loss_chart = next((chart for chart in charts if chart["title"] == "loss"), None)
    if not found or loss_chart is None:
        return
    loss_chart["series"].append(
        {
            "label": "evaluation",
            "points": True,
            "x": list(found),
            "y": short(np.array(list(found.values()))),
        }
    )
