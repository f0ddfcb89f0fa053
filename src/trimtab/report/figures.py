"""Figures as SVG: the loss of a run, the signals around an incident.

Colours are variables: a figure inside a page takes its colours from the page, and a file of its own
brings them along. All text is escaped by `tag`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, Column, FloatArray, IntArray
from trimtab.core.card import card
from trimtab.core.escaping import Html, tag
from trimtab.core.text import digits
from trimtab.explain.diagnosis import Diagnosis
from trimtab.report import wording
from trimtab.report.pages.series import (
    LOG_RATIO,
    RunLines,
    evaluation_losses,
    minmax_rows,
    percentiles,
    shared_axis,
)
from trimtab.report.run_report import RunReport

INK, MUTE, RULE, DATA, ALARM = (
    f"var(--{name})" for name in ("ink", "mute", "rule", "data", "alarm")
)

_STYLE = Html(
    ".fig{--ink:#1b1f24;--mute:#57606a;--rule:#d8dde3;--data:#1f5fbf;--alarm:#b42318;"
    "--band-alarm:#b423181a;--band-warn:#c98a0022;--band-good:#1a6b3c1a;--paper:#fff}"
    "@media(prefers-color-scheme:dark){.fig{--ink:#e3e7ec;--mute:#98a2ae;--rule:#30373f;"
    "--data:#74aaff;--alarm:#ff8272;--band-alarm:#ff827222;--band-warn:#e3ab4522;"
    "--band-good:#6cc38f22;--paper:#14171a}}"
)

_TAB_COLOURS = {"good": "tab:green", "warn": "tab:orange", "alarm": "tab:red"}

WIDTH = 760
"""Pixels of a figure of an incident."""

LEFT, RIGHT, PANEL, GAP = 74, 14, 100, 32
"""Of the figure of an incident, in pixels: room for numbers, margin, height of a panel, and between
panels."""
POINTS = 300
MARGIN = 0.5
"""Records shown before and after an incident, as a share of it; at least 60, at most 400."""
MAX_PANELS = 4

RUN_TOP, RUN_PANEL = 36, 150
"""Of the figure of a whole run, in pixels: room for words and numbers, height of its panel."""

MAX_HEAD = 2.0
"""How much longer the axis may be for the first tenth of the run, whose loss is that of an
untrained model. Chosen: what matters keeps half of the height."""

MAX_BANDS = 100
"""Incidents marked in the figure of a run: more would be a single band."""

SMALL_WIDTH, SMALL_HEIGHT = 300, 64
"""Pixels of the curve on the card of an incident."""


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
        # Halved: the difference of two huge numbers may overflow.
        half = high / 2 - low / 2
        share = (value / 2 - low / 2) / half if half > 0 else 0.5
        return self.start + share * (self.end - self.start)

    def inside(self, value: float, margin: float = 0) -> float:
        """Return the pixel of a value, at most so many pixels beyond the ends."""
        low, high = min(self.start, self.end) - margin, max(self.start, self.end) + margin
        return min(max(self(max(value, self.low) if self.is_log else value), low), high)


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
) -> Html:
    return tag("text", text, x=x, y=y, fill=fill, text_anchor=anchor, font_weight=weight)


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


def _band(diagnosis: Diagnosis) -> str:
    """Return the colour behind the records of an incident."""
    return f"var(--band-{wording.tone(diagnosis)})"


def draw_small(diagnosis: Diagnosis, block: Block) -> Html:
    """Return the loss around an incident without axes or words, for its card on a page."""
    part, x, (left, right) = _around(diagnosis, block, 2, SMALL_WIDTH - 2)
    name = wording.measure_name(diagnosis)
    column = part.column(name)
    values = column.values[column.finite]
    y = _value_axis(values if len(values) else np.zeros(1), SMALL_HEIGHT - 4, 8)
    bad = sorted({round(x(row)) for row in np.flatnonzero(column.nonfinite).tolist()})
    parts = [
        _rect(left, 0, right - left, SMALL_HEIGHT, _band(diagnosis)),
        _path("".join(f"M{place} 0v5" for place in bad), ALARM),
        _path(_curve(column, x, y, part.attempt, SMALL_WIDTH // 2), DATA, stroke_width="1.4"),
    ]
    what = f"{name.capitalize()} around incident {diagnosis.incident.number}"
    title = f"{what}: {digits(y.low)} to {digits(y.high)}"
    return _svg(SMALL_WIDTH, SMALL_HEIGHT, title, parts, is_file=False)


def draw_incident(diagnosis: Diagnosis, block: Block, *, is_file: bool) -> Html:
    """Return the figure of an incident; `is_file` makes it a document of its own."""
    incident = diagnosis.incident
    part, x, (left, right) = _around(diagnosis, block, LEFT, WIDTH - RIGHT)
    names = _chosen(diagnosis, part)
    height = len(names) * (PANEL + GAP) + 18
    bottom = height - 22
    parts = [
        _rect(left, 4, right - left, bottom - 4, _band(diagnosis)),
        _path(f"M{left:.1f} 4V{bottom}", ALARM),
    ]
    for place, name in enumerate(names):
        top = 22 + place * (PANEL + GAP)
        level = incident.facts.level
        parts += _panel(name, place + 1, part, top, x, level.before if level else math.nan)
    last = len(part) - 1
    rows = sorted({0, len(part) // 4, len(part) // 2, 3 * len(part) // 4, last})
    parts += _step_axis([(int(part.step[row]), x(row)) for row in rows], height - 8)
    title = f"Signals around incident {incident.number}, steps {part.step[0]} to {part.step[-1]}"
    return _svg(WIDTH, height, title, parts, is_file=is_file)


def panel_names(diagnosis: Diagnosis, block: Block) -> list[str]:
    """Return the signals in the figure of an incident, in the order of its panels."""
    return _chosen(diagnosis, _around(diagnosis, block, LEFT, WIDTH - RIGHT)[0])


def _chosen(diagnosis: Diagnosis, part: Block) -> list[str]:
    """Return reward, loss and norm, then the signals of the findings."""
    found = [finding.signal for finding in diagnosis.incident.findings]
    names = dict.fromkeys(
        [wording.measure_name(diagnosis), signals.LOSS, signals.GRAD_NORM, *found, signals.LR]
    )
    return [name for name in names if part.column(name).recorded][:MAX_PANELS]


def _panel(
    name: str, number: int, part: Block, top: float, x: AxisScale, baseline: float
) -> Iterator[Html]:
    column = part.column(name)
    values = column.values[column.finite]
    if not len(values):
        yield _text(LEFT, top - 8, f"{number} {name}", weight="600")
        yield _path(f"M{LEFT} {top + PANEL}H{WIDTH - RIGHT}", RULE)
        yield _text(LEFT + 8, top + PANEL / 2, "no finite value here", fill=ALARM)
        yield from _nonfinite(column, x, top)
        return
    y = _value_axis(values, top + PANEL, top)
    yield from _frame(f"{number} {name}", y, top - 8)
    # Inside the panel only: at its edge the line would look like the axis.
    if name == signals.LOSS and y.low < baseline < y.high:
        yield _path(f"M{LEFT} {y(baseline):.1f}H{WIDTH - RIGHT}", MUTE, stroke_dasharray="2 4")
    yield from _nonfinite(column, x, top)
    yield _path(_curve(column, x, y, part.attempt, POINTS), DATA, stroke_width="1.4")


def _frame(name: str, y: AxisScale, title_y: float) -> Iterator[Html]:
    """Yield the name of a panel, its axis, and the smallest and largest value."""
    yield _text(LEFT, title_y, name, weight="600")
    yield _path(f"M{LEFT} {y.start:g}H{WIDTH - RIGHT}", RULE)
    yield _text(LEFT - 8, y.end + 9, digits(y.high), fill=MUTE, anchor="end")
    yield _text(LEFT - 8, y.start, digits(y.low), fill=MUTE, anchor="end")
    if y.is_log:
        yield _text(WIDTH - RIGHT, title_y, "log", fill=MUTE, anchor="end")


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
        yield _beside(x(rows[0]), top + 18, "not finite", ALARM)


def _beside(x: float, y: float, text: str, fill: str) -> Html:
    """Return words to the right of a mark; to its left where they would leave the figure."""
    if x < WIDTH - RIGHT - 60:
        return _text(x + 4, y, text, fill=fill)
    return _text(x - 4, y, text, fill=fill, anchor="end")


def _step_axis(ticks: Sequence[tuple[int, float]], y: float) -> Iterator[Html]:
    """Yield the steps under a figure, each at its pixel."""
    for place, (step, x) in enumerate(ticks):
        anchor = "start" if place == 0 else "end" if place == len(ticks) - 1 else "middle"
        text = f"step {step:,}" if place == 0 else f"{step:,}"
        yield _text(x, y, text, fill=MUTE, anchor=anchor)


# The loss of a whole run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurve:
    """The loss of a whole run over its steps, prepared for SVG and for matplotlib."""

    line: Mapping[str, Any]
    """Its points, repeated steps and non-finite stretches (`RunLines.line`)."""
    evaluations: Mapping[int, float]
    """Losses of evaluations by step; of very many, the extremes of each stretch."""
    first: int
    """The first step."""
    last: int
    y: AxisScale
    incidents: Sequence[Diagnosis]
    """Those that are marked."""

    @classmethod
    def from_report(cls, report: RunReport) -> "RunCurve":
        """Prepare the curve of a report."""
        block = report.block
        column, evaluated = block.column(signals.LOSS), evaluation_losses(block)
        steps, losses = list(evaluated), np.array(list(evaluated.values()))
        finite = column.values[column.finite]
        axis = shared_axis([finite, losses])
        low, high = axis["range"] or (0.0, 1.0)
        values = np.concatenate([finite, losses, (low, high)])
        least, most = float(values.min()), float(values.max())
        if least > 0 if axis["log"] else most - least <= MAX_HEAD * (high - low):
            low, high = least, most
        shown = {steps[row]: evaluated[steps[row]] for row in minmax_rows(losses, POINTS // 2)}
        return cls(
            line=RunLines.of(block).line(signals.LOSS, WIDTH // 2),
            evaluations=shown,
            first=int(block.step.min()) if len(block) else 0,
            last=int(block.step.max()) if len(block) else 0,
            y=AxisScale(low, high, RUN_TOP + RUN_PANEL, RUN_TOP, axis["log"]),
            incidents=report.most_severe(MAX_BANDS),
        )

    @property
    def peak(self) -> tuple[int, float] | None:
        """Step and value of the highest point, if it is beyond the axis."""
        points = zip(self.line["y"], self.line["x"], strict=True)
        value, step = max((point for point in points if point[0] is not None), default=(0.0, 0))
        # Points have six digits: the highest one may be just over the end of the axis.
        is_beyond = value > self.y.high and digits(value) != digits(self.y.high)
        return (step, value) if is_beyond else None

    def _repr_html_(self) -> str:
        return card("", "", self.draw())

    def draw(self) -> Html:
        """Return the figure as a part of a page."""
        x, y = AxisScale(self.first, self.last, LEFT, WIDTH - RIGHT), self.y
        curves = [
            _path(_polyline(gone, x, y), MUTE, stroke_opacity="0.5")
            for gone in self.line.get("gone", ())
        ]
        curves.append(_path(_polyline(self.line, x, y), DATA, stroke_width="1.4"))
        # What is beyond the axis is cut off at the edges of an inner drawing.
        width = WIDTH - LEFT - RIGHT
        inner = tag(
            "svg",
            *curves,
            viewBox=f"{LEFT} {RUN_TOP} {width} {RUN_PANEL}",
            x=LEFT,
            y=RUN_TOP,
            width=width,
            height=RUN_PANEL,
        )
        between = (self.first + (self.last - self.first) * n / 4 for n in (1, 2, 3))
        # Two digits are easier to read; the number stands where its step is.
        rounded = {int(float(f"{step:.2g}")) for step in between}
        steps = {self.first, *(s for s in rounded if self.first < s < self.last), self.last}
        parts = [
            *self._bands(x),
            *_frame("loss", y, 14),
            inner,
            *self._points(x),
            *_step_axis([(step, x(step)) for step in sorted(steps)], y.start + 18),
        ]
        return _svg(WIDTH, RUN_TOP + RUN_PANEL + 24, "Loss of the run", parts, is_file=False)

    def _bands(self, x: AxisScale) -> Iterator[Html]:
        """Yield a band from onset to end of each incident, and its number over the onset."""
        free = 0.0
        for one in self.incidents:
            incident, tone = one.incident, wording.tone(one)
            onset = x(incident.onset.step)
            # An incident of one record would be too thin to see.
            end = max(x((incident.end or incident.last).step), onset + 1.5)
            yield _rect(onset, RUN_TOP, end - onset, RUN_PANEL, _band(one))
            colour, line = f"var(--{tone})", f"M{onset:.1f} {RUN_TOP - 3}V{self.y.start}"
            yield _path(line, colour, stroke_opacity="0.7")
            if onset >= free:  # a number that would stand on another one is left out
                number = str(incident.number)
                yield _text(onset, RUN_TOP - 7, number, fill=colour, anchor="middle")
                free = onset + 8 * len(number) + 4

    def _points(self, x: AxisScale) -> Iterator[Html]:
        """Yield non-finite values, evaluations, the peak beyond the axis, and what they are."""
        key = LEFT + 46.0
        if self.evaluations:
            dots = [(x(at), self.y.inside(loss)) for at, loss in self.evaluations.items()]
            path = "".join(f"M{left:.1f} {height:.1f}h0" for left, height in [*dots, (key, 10.0)])
            yield _path(path, INK, stroke_width="5", stroke_linecap="round")
            yield _text(key + 8, 14, "evaluation", fill=MUTE)
            key += 84
        if self.peak is not None:
            step, value = self.peak
            for left, top in ((x(step), RUN_TOP), (key, 6)):
                yield tag("path", d=f"M{left - 4:.1f} {top + 7}l4 -7l4 7z", fill=DATA)
            yield _text(key + 8, 14, f"{digits(value)} at step {step:,}", fill=MUTE)
        bad = [(x(start), x(stop)) for start, stop, _ in self.line.get("nonfinite", ())]
        if bad:
            bars = "".join(f"M{start:.1f} {RUN_TOP + 2}H{stop:.1f}" for start, stop in bad)
            yield _path(bars, ALARM, stroke_width="4", stroke_linecap="square")
            yield _beside(bad[0][0], RUN_TOP + 18, "not finite", ALARM)

    def __repr__(self) -> str:
        return f"<RunCurve: steps {self.first:,} to {self.last:,}>"

    def draw_on(self, ax: Any) -> None:
        """Draw the same on the axes of matplotlib."""
        for one in self.incidents:
            onset, end = one.incident.onset.step, one.incident.end or one.incident.last
            colour = _TAB_COLOURS[wording.tone(one)]
            ax.axvspan(onset, end.step, color=colour, alpha=0.15, linewidth=0)
            ax.axvline(onset, color=colour, linewidth=1)
        for gone in self.line.get("gone", ()):
            ax.plot(gone["x"], _drawable(gone["y"]), color="tab:gray", alpha=0.5, linewidth=1)
        losses = _drawable(self.line["y"])
        ax.plot(self.line["x"], losses, color="tab:blue", linewidth=1.4, label="loss")
        if self.evaluations:
            ax.plot(*zip(*self.evaluations.items(), strict=True), "k.", label="evaluation")
        top = ax.get_xaxis_transform()
        for place, (start, stop, _) in enumerate(self.line.get("nonfinite", ())):
            label = None if place else "not finite"
            ax.plot([start, stop], [0.99] * 2, "r|-", linewidth=3, transform=top, label=label)
        if self.peak is not None:
            step, value = self.peak
            label = f"{digits(value)} at step {step:,}"
            ax.plot([step], [0.98], "^", color="tab:blue", transform=top, label=label)
        scale = "log" if self.y.is_log else "linear"
        ax.set(xlabel="step", yscale=scale, ylim=_drawable([self.y.low, self.y.high]))
        ax.legend()


def _drawable(values: Sequence[float | None]) -> list[float | None]:
    """Return values that matplotlib can compute with: it squares some of them."""
    return [None if value is None else min(max(value, -1e150), 1e150) for value in values]


def _polyline(line: Mapping[str, Any], x: AxisScale, y: AxisScale) -> str:
    parts, verb = [], "M"
    for step, value in zip(line["x"], line["y"], strict=True):
        if value is not None:
            parts.append(f"{verb}{x(step):.1f} {y.inside(value, 1000):.1f}")
        verb = "M" if value is None else "L"
    return "".join(parts)
