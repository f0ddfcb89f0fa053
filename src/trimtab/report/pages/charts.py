"""The charts of a run's page, in order, and how to record what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.core import signals
from trimtab.report.pages.axis import shared_axis
from trimtab.report.pages.decimate import BUCKETS
from trimtab.report.pages.heat_map import heat_map
from trimtab.report.pages.line import RunLines

MAX_LINES = 6
"""Groups drawn as lines of one chart; more are a heat map."""

MAX_OTHERS = 40
"""Signals without a chart of their own that are drawn too."""

_TELEMETRY = "trimtab.watch records it every 10th step (live.telemetry_every)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart of the page."""

    title: str
    names: tuple[str, ...]
    """Its signals; those that were recorded are drawn."""
    how: str
    """How to record them, in one sentence."""
    family: str = ""
    """Prefix of further signals of the same chart, one per group or layer."""
    is_heat: bool = False
    """Whether the family is always a heat map."""


PANELS = (
    Panel(
        title="loss",
        names=(signals.LOSS, signals.REFERENCE_LOSS, signals.EVAL_LOSS),
        how="guard.record(loss=...)",
    ),
    Panel(
        title="gradient norm",
        names=(signals.GRAD_NORM, signals.CLIPPED_GRAD_NORM),
        how="clip with guard.clip_grad_norm_(...), or log the norm before clipping as grad_norm",
    ),
    Panel(
        title="learning rate",
        names=(signals.LR, signals.PLANNED_LR),
        how="trimtab.watch records it; in other logs, log it as lr",
    ),
    Panel(title="weight norm", names=(signals.PARAM_NORM,), family="param_norm/", how=_TELEMETRY),
    Panel(title="update norm", names=(signals.UPDATE_NORM,), family="update_norm/", how=_TELEMETRY),
    Panel(
        title="Adam second moment, norm",
        names=(signals.ADAM_V_NORM,),
        family="adam_v_norm/",
        how=_TELEMETRY,
    ),
    Panel(
        title="gradient norm by group and layer",
        names=(),
        family=signals.GRAD_NORM_OF,
        is_heat=True,
        how=_TELEMETRY,
    ),
    Panel(
        title="activations by layer",
        names=(),
        family=signals.ACTIVATION_RMS,
        is_heat=True,
        how=f"{_TELEMETRY}, unless live.activations is off",
    ),
    Panel(
        title="loss scale",
        names=(signals.LOSS_SCALE,),
        how="only fp16 has one: trimtab.watch(..., scaler=your GradScaler)",
    ),
    Panel(
        title="tokens per second",
        names=(signals.TOKENS_PER_SECOND,),
        how="guard.record(tokens=...)",
    ),
    Panel(
        title="seconds per step",
        names=(signals.STEP_SECONDS, signals.DATA_SECONDS),
        how="trimtab.watch records it; waiting for data needs guard.steps(loader)",
    ),
    Panel(
        title="token rarity",
        names=(signals.TOKEN_RARITY,),
        how="guard.steps(loader) with batches that are still on the host",
    ),
)

_NOT_DRAWN = frozenset(
    {signals.CLOCK, signals.FINGERPRINT, signals.DISCARDED, signals.RESUME_AUDIT, signals.TOKENS}
)
"""Signals that are no curve: times, names of batches, flags; discards have their own lane."""


def make_charts(lines: RunLines) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """The charts as JSON values; by how to record it, what was not recorded."""
    recorded = [name for name, column in lines.block.columns.items() if column.recorded]
    charts: list[dict[str, Any]] = []
    missing: dict[str, list[str]] = {}
    drawn: set[str] = set()
    for panel in PANELS:
        own = [name for name in panel.names if name in recorded]
        family = [n for n in recorded if panel.family and n.startswith(panel.family)]
        drawn.update(own, family)
        if not own and not family:
            missing.setdefault(panel.how, []).append(panel.title)
            continue
        is_heat = panel.is_heat or len(family) > MAX_LINES
        names = own if is_heat else own + family
        if names:
            chart = make_chart(lines, panel.title, names)
            for line in chart["series"]:
                line["label"] = line["label"].removeprefix(panel.family)
            charts.append({**chart, "total": True} if own and names != own else chart)
        if is_heat and (heat := heat_map(lines, family, panel.family)):
            title = panel.title if panel.is_heat else f"{panel.title} by group"
            charts.append({"kind": "heat", "title": title, **heat})
    others = [n for n in recorded if n not in drawn | _NOT_DRAWN and not n.startswith("lr/")]
    # Short names first: totals before the groups and layers of the same signal.
    for name in sorted(others, key=lambda n: (n.count("/"), n))[:MAX_OTHERS]:
        charts.append({**make_chart(lines, name, [name], BUCKETS // 4), "other": True})
    return charts, missing


def make_chart(
    lines: RunLines, title: str, names: Sequence[str], buckets: int = BUCKETS
) -> dict[str, Any]:
    """One chart of lines."""
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
    if notes:
        chart["note"] = ", ".join(notes)
    return chart
