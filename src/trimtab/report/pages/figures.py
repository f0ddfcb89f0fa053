"""The figure of an incident as SVG: its signals above each other, on one axis of steps.

Inside a page it takes its colours from the page; as a file of its own it brings them along.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, Column, IntArray
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.check import number
from trimtab.report.pages.axis import LOG_RATIO, percentiles
from trimtab.report.pages.decimate import minmax_rows
from trimtab.report.svg import svg_document, svg_text

NAME = "incident.svg"
"""The file of the figure, beside the post-mortem."""

WIDTH, LEFT, RIGHT, PANEL, GAP = 760, 74, 14, 100, 32
"""In pixels: the figure, the room for numbers, the margin, a panel, the room between panels."""

POINTS = 300
MARGIN = 0.5
"""Records shown before and after, as a share of the incident; at least 60, at most 400."""

MAX_PANELS = 4


def draw_incident(diagnosis: Diagnosis, block: Block, *, is_file: bool) -> str:
    """The figure; `is_file` adds what a document of its own needs."""
    incident = diagnosis.incident
    onset, last = block.row_of(incident.onset.tick), block.row_of(incident.last.tick)
    margin = min(max(int(MARGIN * (last - onset)), 60), 400)
    start, stop = max(onset - margin, 0), min(last + margin + 1, len(block))
    part = block[start:stop]
    names = _chosen(diagnosis, part)
    height = len(names) * (PANEL + GAP) + 18
    # Records, not steps: after a rollback a step comes twice, in the order in which it was done.
    body = [_band(onset - start, last - start, len(part), height)]
    for place, name in enumerate(names):
        top = 22 + place * (PANEL + GAP)
        body += _panel(name, part, top, float(incident.baseline_mean or math.nan))
    body += _steps(part.step, height - 8)
    title = f"Signals around incident {incident.number}, steps {part.step[0]} to {part.step[-1]}"
    return svg_document(WIDTH, height, title, "\n".join(body), is_file=is_file)


def _chosen(diagnosis: Diagnosis, part: Block) -> list[str]:
    """Loss and norm, then the signals of the findings."""
    found = [finding.signal for finding in diagnosis.incident.findings]
    names = dict.fromkeys([signals.LOSS, signals.GRAD_NORM, *found, signals.LR])
    return [name for name in names if part.column(name).recorded][:MAX_PANELS]


def _panel(name: str, part: Block, top: float, baseline: float) -> Iterator[str]:
    column = part.column(name)
    values = column.values[column.finite]
    yield svg_text(LEFT, top - 8, name, weight="600")
    yield f'<path d="M{LEFT} {top + PANEL}H{WIDTH - RIGHT}" stroke="var(--rule)"/>'
    if not len(values):
        yield svg_text(LEFT + 8, top + PANEL / 2, "no finite value here", fill="var(--alarm)")
        yield from _nonfinite(column, len(part), top)
        return
    low, high = float(values.min()), float(values.max())
    is_log = low > 0 and high > LOG_RATIO * percentiles(values, (50,))[0]
    yield svg_text(LEFT - 8, top + 9, number(high), fill="var(--mute)", anchor="end")
    yield svg_text(LEFT - 8, top + PANEL, number(low), fill="var(--mute)", anchor="end")
    if is_log:
        yield svg_text(WIDTH - RIGHT, top - 8, "log", fill="var(--mute)", anchor="end")

    def height(value: float) -> float:
        if is_log:
            value, least, most = math.log(value), math.log(low), math.log(high)
        else:
            least, most = low, high
        share = (value - least) / (most - least) if most > least else 0.5
        return top + PANEL - share * PANEL

    if name == signals.LOSS and low < baseline < high:
        yield (
            f'<path d="M{LEFT} {height(baseline):.1f}H{WIDTH - RIGHT}" stroke="var(--mute)" '
            'stroke-dasharray="2 4"/>'
        )
    yield from _nonfinite(column, len(part), top)
    line = _path(column, height, part.attempt)
    yield f'<path d="{line}" fill="none" stroke="var(--data)" stroke-width="1.4"/>'


def _path(column: Column, height: Callable[[float], float], attempt: IntArray) -> str:
    rows = np.flatnonzero(column.finite)
    rows = rows[minmax_rows(column.values[rows], POINTS)]
    bad = np.flatnonzero(column.nonfinite)
    parts, before = [], -1
    for row in rows.tolist():
        x, y = _x(row, len(column.values)), height(float(column.values[row]))
        is_cut = before < 0 or attempt[before] != attempt[row]
        is_cut = is_cut or bool(((bad > before) & (bad < row)).any())
        parts.append(f"{'M' if is_cut else 'L'}{x:.1f} {y:.1f}")
        before = row
    return "".join(parts)


def _nonfinite(column: Column, length: int, top: float) -> Iterator[str]:
    rows = np.flatnonzero(column.nonfinite)
    if not len(rows):
        return
    places = sorted({round(_x(row, length)) for row in rows.tolist()})
    marks = "".join(f"M{x} {top}v6" for x in places)
    yield f'<path d="{marks}" stroke="var(--alarm)"/>'
    yield svg_text(_x(int(rows[0]), length) + 4, top + 18, "not finite", fill="var(--alarm)")


def _band(first: int, last: int, length: int, height: float) -> str:
    left, right = _x(first, length), _x(last, length)
    return (
        f'<path d="M{left:.1f} 4H{max(right, left + 1.5):.1f}V{height - 22}H{left:.1f}Z" '
        f'fill="var(--band)"/><path d="M{left:.1f} 4V{height - 22}" stroke="var(--alarm)"/>'
    )


def _steps(steps: IntArray, y: float) -> Iterator[str]:
    places = sorted({0, len(steps) // 4, len(steps) // 2, 3 * len(steps) // 4, len(steps) - 1})
    for place in places:
        anchor = "start" if place == 0 else "end" if place == len(steps) - 1 else "middle"
        text = f"step {steps[place]:,}" if place == 0 else f"{steps[place]:,}"
        yield svg_text(_x(place, len(steps)), y, text, fill="var(--mute)", anchor=anchor)


def _x(row: float, length: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (row / (length - 1) if length > 1 else 0.5)
