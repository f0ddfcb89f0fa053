"""Figures as SVG: the signals around an incident, the tokens of a batch.

Colours are variables: a figure inside a page takes its colours from the page, and a file of its own
brings them along. All text is escaped by `tag`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, Column, FloatArray, IntArray
from trimtab.core.text import digits
from trimtab.explain.diagnosis import Diagnosis
from trimtab.journal.batches.batch_report import BatchReport
from trimtab.report.batch_section import Bar, batch_place, histogram_groups, share_text
from trimtab.report.escaping import Html, tag
from trimtab.report.pages.series import LOG_RATIO, minmax_rows, percentiles

INK, MUTE, RULE, DATA, ALARM = (
    f"var(--{name})" for name in ("ink", "mute", "rule", "data", "alarm")
)

_STYLE = Html(
    ".fig{--ink:#1b1f24;--mute:#57606a;--rule:#d8dde3;--data:#1f5fbf;--alarm:#b42318;"
    "--band:#b423181a;--paper:#fff}"
    "@media(prefers-color-scheme:dark){.fig{--ink:#e3e7ec;--mute:#98a2ae;--rule:#30373f;"
    "--data:#74aaff;--alarm:#ff8272;--band:#ff827222;--paper:#14171a}}"
)

WIDTH = 760
"""Pixels of a figure of an incident, and of its tokens."""

LEFT, RIGHT, PANEL, GAP = 74, 14, 100, 32
"""Of the figure of an incident, in pixels: room for numbers, margin, height of a panel, and between
panels."""
POINTS = 300
MARGIN = 0.5
"""Records shown before and after an incident, as a share of it; at least 60, at most 400."""
MAX_PANELS = 4

SMALL_WIDTH, SMALL_HEIGHT = 300, 64
"""Pixels of the curve on the card of an incident."""

LABEL, VALUE, BAR, ROW = 270, 64, 9, 30
"""Of the histogram, in pixels: room for labels, for the number after a bar, a bar, a row."""


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; the middle if the scale has no length."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def _svg(width: int, height: int, title: str, parts: Iterable[Html], *, is_file: bool) -> Html:
    """Return the document around a drawing; `is_file` adds what one outside of a page needs."""
    own = [tag("style", _STYLE), _rect(0, 0, width, height, "var(--paper)")] if is_file else []
    return tag(
        "svg",
        tag("title", title),
        *own,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        class_="fig",
        viewBox=f"0 0 {width} {height}",
        width=str(width),
        height=str(height),
        role="img",
        font_family="system-ui, sans-serif",
        font_size="12",
        fill=INK,
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    fill: str | None = None,
    anchor: str | None = None,
    weight: str | None = None,
    size: str | None = None,
) -> Html:
    style = {"text_anchor": anchor, "font_weight": weight, "font_size": size}
    return tag("text", text, x=x, y=y, fill=fill, **style)


def _path(d: str, stroke: str, **more: str) -> Html:
    return tag("path", d=d, stroke=stroke, fill="none", **more)


def _rect(x: float, y: float, width: float, height: float, fill: str) -> Html:
    return tag("rect", x=x, y=y, width=width, height=height, fill=fill)


# The signals around an incident, one panel each above a shared axis


def _around(
    diagnosis: Diagnosis, block: Block, left: float, right: float
) -> tuple[Block, AxisScale, tuple[float, float]]:
    """Return the records around an incident, their axis, and where on it the incident is."""
    incident = diagnosis.incident
    onset, last = block.row_of(incident.onset.tick), block.row_of(incident.last.tick)
    margin = min(max(int(MARGIN * (last - onset)), 60), 400)
    start = max(onset - margin, 0)
    part = block[start : min(last + margin + 1, len(block))]
    # Records, not steps: after a resume at an earlier step some steps come twice.
    x = AxisScale(0, len(part) - 1, left, right)
    # An incident of one record would be too thin to see: it is drawn 1.5 pixels wide.
    return part, x, (x(onset - start), max(x(last - start), x(onset - start) + 1.5))


def _value_axis(values: FloatArray, bottom: float, top: float) -> AxisScale:
    """Return the axis of the values, logarithmic where a few are far above the rest."""
    low, high = float(values.min()), float(values.max())
    is_log = low > 0 and high > LOG_RATIO * percentiles(values, (50,))[0]
    return AxisScale(low, high, bottom, top, is_log)


def draw_small(diagnosis: Diagnosis, block: Block) -> Html:
    """Return the loss around an incident without axes or words, for its card on a page."""
    part, x, (left, right) = _around(diagnosis, block, 2, SMALL_WIDTH - 2)
    column = part.column(signals.LOSS)
    values = column.values[column.finite]
    y = _value_axis(values if len(values) else np.zeros(1), SMALL_HEIGHT - 4, 8)
    bad = sorted({round(x(row)) for row in np.flatnonzero(column.nonfinite).tolist()})
    parts = [
        _rect(left, 0, right - left, SMALL_HEIGHT, "var(--band)"),
        _path("".join(f"M{place} 0v5" for place in bad), ALARM),
        _path(_curve(column, x, y, part.attempt, SMALL_WIDTH // 2), DATA, stroke_width="1.4"),
    ]
    title = f"Loss around incident {diagnosis.incident.number}: {digits(y.low)} to {digits(y.high)}"
    return _svg(SMALL_WIDTH, SMALL_HEIGHT, title, parts, is_file=False)


def draw_incident(diagnosis: Diagnosis, block: Block, *, is_file: bool) -> Html:
    """Return the figure of an incident; `is_file` makes it a document of its own."""
    incident = diagnosis.incident
    part, x, (left, right) = _around(diagnosis, block, LEFT, WIDTH - RIGHT)
    names = _chosen(diagnosis, part)
    height = len(names) * (PANEL + GAP) + 18
    bottom = height - 22
    parts = [
        _rect(left, 4, right - left, bottom - 4, "var(--band)"),
        _path(f"M{left:.1f} 4V{bottom}", ALARM),
    ]
    for place, name in enumerate(names):
        top = 22 + place * (PANEL + GAP)
        parts += _panel(name, part, top, x, float(incident.baseline_mean or math.nan))
    parts += _step_axis(part.step, x, height - 8)
    title = f"Signals around incident {incident.number}, steps {part.step[0]} to {part.step[-1]}"
    return _svg(WIDTH, height, title, parts, is_file=is_file)


def _chosen(diagnosis: Diagnosis, part: Block) -> list[str]:
    """Return loss and norm, then the signals of the findings."""
    found = [finding.signal for finding in diagnosis.incident.findings]
    names = dict.fromkeys([signals.LOSS, signals.GRAD_NORM, *found, signals.LR])
    return [name for name in names if part.column(name).recorded][:MAX_PANELS]


def _panel(name: str, part: Block, top: float, x: AxisScale, baseline: float) -> Iterator[Html]:
    column = part.column(name)
    values = column.values[column.finite]
    yield _text(LEFT, top - 8, name, weight="600")
    yield _path(f"M{LEFT} {top + PANEL}H{WIDTH - RIGHT}", RULE)
    if not len(values):
        yield _text(LEFT + 8, top + PANEL / 2, "no finite value here", fill=ALARM)
        yield from _nonfinite(column, x, top)
        return
    y = _value_axis(values, top + PANEL, top)
    yield _text(LEFT - 8, top + 9, digits(y.high), fill=MUTE, anchor="end")
    yield _text(LEFT - 8, top + PANEL, digits(y.low), fill=MUTE, anchor="end")
    if y.is_log:
        yield _text(WIDTH - RIGHT, top - 8, "log", fill=MUTE, anchor="end")
    # Inside the panel only: at its edge the line would look like the axis.
    if name == signals.LOSS and y.low < baseline < y.high:
        yield _path(f"M{LEFT} {y(baseline):.1f}H{WIDTH - RIGHT}", MUTE, stroke_dasharray="2 4")
    yield from _nonfinite(column, x, top)
    yield _path(_curve(column, x, y, part.attempt, POINTS), DATA, stroke_width="1.4")


def _curve(column: Column, x: AxisScale, y: AxisScale, attempt: IntArray, points: int) -> str:
    rows = np.flatnonzero(column.finite)
    rows = rows[minmax_rows(column.values[rows], points)]
    bad = np.flatnonzero(column.nonfinite)
    parts, before = [], -1
    for row in rows.tolist():
        # A line neither runs through a NaN nor joins two attempts.
        is_cut = before < 0 or attempt[before] != attempt[row]
        is_cut = is_cut or bool(((bad > before) & (bad < row)).any())
        parts.append(f"{'M' if is_cut else 'L'}{x(row):.1f} {y(float(column.values[row])):.1f}")
        before = row
    return "".join(parts)


def _nonfinite(column: Column, x: AxisScale, top: float) -> Iterator[Html]:
    rows = np.flatnonzero(column.nonfinite).tolist()
    if rows:
        places = sorted({round(x(row)) for row in rows})
        yield _path("".join(f"M{place} {top}v6" for place in places), ALARM)
        yield _text(x(rows[0]) + 4, top + 18, "not finite", fill=ALARM)


def _step_axis(steps: IntArray, x: AxisScale, y: float) -> Iterator[Html]:
    last = len(steps) - 1
    for place in sorted({0, len(steps) // 4, len(steps) // 2, 3 * len(steps) // 4, last}):
        anchor = "start" if place == 0 else "end" if place == last else "middle"
        text = f"step {steps[place]:,}" if place == 0 else f"{steps[place]:,}"
        yield _text(x(place), y, text, fill=MUTE, anchor=anchor)


# The tokens of a batch beside those of the run, as bars


def draw_tokens(batch: BatchReport, *, is_file: bool = True) -> Html:
    """Return the histogram of a batch's tokens; `is_file` makes it a document of its own."""
    if batch.shift is not None:
        subject = f"{batch.shift.num_batches} batches from {batch_place(batch.shift)} on"
    elif batch.num_unusual_rows:
        plural = "s" if batch.num_unusual_rows > 1 else ""
        subject = (
            f"{batch.num_unusual_rows} unusual sequence{plural} of the batch at "
            f"{batch_place(batch)}"
        )
    else:
        subject = f"the batch at {batch_place(batch)}"
    parts = [
        _text(16, 26, f"Tokens of {subject}", weight="bold", size="14"),
        _rect(16, 39, 12, 9, ALARM),
        _text(34, 48, "here"),
        _rect(84, 39, 12, 9, MUTE),
        _text(102, 48, "the run before"),
    ]
    y = 74
    for title, bars in histogram_groups(batch):
        if bars:
            parts.append(_text(16, y, title, weight="bold"))
            parts += _bars(bars, y + 10)
            y += 10 + ROW * len(bars) + 22
    return _svg(WIDTH, y, f"Tokens of {subject}", parts, is_file=is_file)


def _bars(bars: Sequence[Bar], top: int) -> Iterator[Html]:
    largest = max(max(here, run) for _, here, run in bars) or 1.0
    x = AxisScale(0.0, largest, LABEL, WIDTH - VALUE - 16)
    for place, (label, here, run) in enumerate(bars):
        middle = top + place * ROW + ROW // 2
        yield _text(LABEL - 10, middle + 4, label, anchor="end")
        for share, colour, y in ((here, ALARM, middle - BAR), (run, MUTE, middle)):
            # A share close to 0 still gets a hairline, so that it differs from a missing bar.
            yield _rect(LABEL, y, max(x(share) - LABEL, 0.5), BAR - 1, colour)
            yield _text(x(share) + 5, y + BAR - 1, share_text(share), size="11")
    yield _path(f"M{LABEL} {top + 2}V{top + ROW * len(bars) - 2}", RULE)
