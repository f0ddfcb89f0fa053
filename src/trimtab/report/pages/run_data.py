"""The JSON of a run's page: its charts, incidents, lanes of attempts and discards, flags."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.core.block import BoolArray, Column, Event
from trimtab.core.incidents import SEVERE
from trimtab.core.jsonable import to_number
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.core.signals import DISCARDED, EVAL_LOSS
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures.goodput import lost_records
from trimtab.report.event_text import event_text, is_quiet
from trimtab.report.pages.charts import make_chart, make_charts
from trimtab.report.pages.decimate import stretches
from trimtab.report.pages.line import RunLines, short
from trimtab.report.run_report import RunReport

GOODPUT = "goodput"

MAX_INCIDENTS = 200
MAX_EVENTS = 400

_KEPT, _GONE, _DISCARDED = 0, 1, 2
"""How a stretch of steps is drawn."""


def run_data(
    report: RunReport, live: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What the scripts draw; by how to record it, what was not recorded."""
    worst_first = report.by_severity()
    ticks = [(i.incident.onset.tick, i.incident.last.tick) for i in worst_first]
    lines = RunLines.of(report.block, ticks)
    charts, missing = make_charts(lines)
    _add_evaluations(charts, report.block.events)
    charts += _goodput(lines)
    data = {
        "charts": charts,
        "incidents": [_span(incident) for incident in report.incidents[:MAX_INCIDENTS]],
        "lanes": _lanes(lines),
        "flags": list(_flags(report)),
        **({"live": dict(live)} if live else {}),
    }
    return data, missing


def tone(diagnosis: Diagnosis) -> str:
    """`alarm` for what hurts a run, `warn` for what passed or was rolled back."""
    if diagnosis.incident.rolled_back:
        return "warn"
    return "alarm" if diagnosis.incident_class in SEVERE else "warn"


def _span(diagnosis: Diagnosis) -> dict[str, Any]:
    incident = diagnosis.incident
    last = incident.end or incident.last
    return {
        "number": incident.number,
        "first": incident.onset.step,
        "last": max(last.step, incident.onset.step),
        "tone": tone(diagnosis),
        "text": f"{diagnosis.outcome}: {incident.symptoms[0]}; {_cause(diagnosis)}",
    }


def _cause(diagnosis: Diagnosis) -> str:
    cause = diagnosis.cause
    return "cause not known" if cause is None else f"{cause.id} {cause.title}"


def _lanes(lines: RunLines) -> list[dict[str, Any]]:
    """The attempts and the discarded steps, as stretches of steps."""
    lanes = []
    if len(lines.attempts) > 1:
        kept, gone = [], []
        for number, (first, last) in enumerate(lines.attempts, start=1):
            is_gone = lines.is_gone[first:last]
            kept += _steps(lines, ~is_gone, first, [_KEPT, number])
            gone += _steps(lines, is_gone, first, [_GONE, number])
        lanes += [{"title": "attempts", "spans": kept}, {"title": "rolled back", "spans": gone}]
    column = lines.block.column(DISCARDED)
    discarded = _steps(lines, column.present & (column.values > 0), 0, [_DISCARDED, 0])
    if discarded:
        lanes.append({"title": "discarded", "spans": discarded})
    return lanes


def _steps(lines: RunLines, mask: BoolArray, offset: int, more: list[int]) -> list[list[int]]:
    """First and last step of each stretch of a mask that begins at a row."""
    steps = lines.block.step[offset:]
    return [[int(steps[a]), int(steps[b]), *more] for a, b in stretches(mask)]


def _flags(report: RunReport) -> Iterator[list[Any]]:
    shown = [event for event in report.block.events if not is_quiet(event)][:MAX_EVENTS]
    for event in shown:
        at = event.step
        if event.kind == ROLLBACK and isinstance(origin := event.facts.get("from"), int):
            at = origin
        yield [at, event.kind, event_text(event)]


def _goodput(lines: RunLines) -> list[dict[str, Any]]:
    """The share of steps kept so far, where any was lost."""
    block = lines.block
    is_lost = lost_records(block) | lines.is_gone
    if not is_lost.any():
        return []
    share = np.cumsum(~is_lost) / np.arange(1, len(block) + 1)
    column = {GOODPUT: Column.complete(share)}
    derived = RunLines.of(dataclasses.replace(block, columns=column, qualities={}))
    chart = make_chart(derived, "goodput, share of steps kept so far", [GOODPUT])
    for line in chart["series"]:
        line.pop("gone", None)
    return [{**chart, "log": False}]


def _add_evaluations(charts: list[dict[str, Any]], events: Sequence[Event]) -> None:
    """The losses of evaluations, which are events, as points in the chart of the loss."""
    found: list[tuple[int, float]] = []
    for event in events:
        if event.kind == "evaluation":
            loss = to_number(event.facts.get("loss"))
            if loss is not None and math.isfinite(loss):
                found.append((event.step, loss))
    loss_chart = next((chart for chart in charts if chart["title"] == "loss"), None)
    if not found or loss_chart is None:
        return
    if any(line["label"] == EVAL_LOSS for line in loss_chart["series"]):
        return
    by_step = sorted(dict(found).items())
    loss_chart["series"].append(
        {
            "label": "evaluation",
            "points": True,
            "x": [step for step, _ in by_step],
            "y": short(np.array([loss for _, loss in by_step])),
        }
    )
