"""Panels of lines on logarithmic axes, as an SVG: what a quantity does as a size grows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimtab.report.svg import svg_document, svg_text

PANEL, HEIGHT, LEFT, TOP, LABELS = 230, 240, 62, 62, 150
"""In pixels: width and height of a panel, the room left of it, above all, and for labels."""

MAX_LINES = 9
"""Lines that are drawn; of more, evenly spaced ones, the first and the last among them."""

LABEL_HEIGHT = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of a line; what is not positive and finite is left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    is_marked: bool = False
    """Drawn in the colour of alarms."""

    @property
    def points(self) -> list[tuple[float, float]]:
        """The points that a logarithmic axis can show."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if x > 0 and 0 < y < math.inf]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart."""

    title: str
    lines: Sequence[Line]


def draw_panels(title: str, x_title: str, panels: Sequence[Panel]) -> str:
    """The panels side by side, labels at the ends of their lines."""
    step = LEFT + PANEL + LABELS
    body = [svg_text(16, 26, title, weight="bold", size=14)]
    for place, panel in enumerate(panels):
        body += _draw(panel, place * step + LEFT, x_title)
    return svg_document(len(panels) * step, TOP + HEIGHT + 48, title, "\n".join(body), is_file=True)


def _draw(panel: Panel, left: float, x_title: str) -> Iterator[str]:
    yield svg_text(left, TOP - 12, panel.title, weight="600")
    yield (
        f'<path d="M{left} {TOP}V{TOP + HEIGHT}H{left + PANEL}" fill="none" stroke="var(--rule)"/>'
    )
    lines = [line for line in _some(panel.lines) if line.points]
    if not lines:
        yield svg_text(left + 8, TOP + HEIGHT / 2, "no positive value", fill="var(--mute)")
        return
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    low, high = _decades(min(ys), max(ys))
    for power in range(low, high + 1):
        y = _place(10.0**power, 10.0**low, 10.0**high, TOP + HEIGHT, TOP)
        yield f'<path d="M{left} {y:.1f}h{PANEL}" stroke="var(--rule)" stroke-dasharray="2 4"/>'
        yield svg_text(left - 8, y + 4, _power(power), fill="var(--mute)", anchor="end")
    for value in xs:
        x = _place(value, xs[0], xs[-1], left, left + PANEL)
        text = f"{value:g}"
        yield svg_text(x, TOP + HEIGHT + 18, text, fill="var(--mute)", anchor="middle")
    middle = left + PANEL / 2
    yield svg_text(middle, TOP + HEIGHT + 36, x_title, fill="var(--mute)", anchor="middle")
    ends = []
    for line in lines:
        places = [
            (
                _place(x, xs[0], xs[-1], left, left + PANEL),
                _place(y, 10.0**low, 10.0**high, TOP + HEIGHT, TOP),
            )
            for x, y in line.points
        ]
        colour = "var(--alarm)" if line.is_marked else "var(--data)"
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
        yield f'<g fill="{colour}">{dots}</g>'
        ends.append((places[-1], line.label, colour))
    yield from _labels(ends, left + PANEL)


def _labels(ends: list[tuple[tuple[float, float], str, str]], right: float) -> Iterator[str]:
    """Labels at the ends of lines, moved apart where they would cover each other."""
    ends.sort(key=lambda end: end[0][1])
    heights: list[float] = []
    for (_, y), _, _ in ends:
        heights.append(max(y, heights[-1] + LABEL_HEIGHT) if heights else y)
    over = max(heights[-1] - (TOP + HEIGHT), 0.0)
    for place in range(len(heights) - 1, -1, -1):
        below = heights[place + 1] - LABEL_HEIGHT if place + 1 < len(heights) else math.inf
        heights[place] = min(heights[place] - (over if place + 1 == len(heights) else 0), below)
    for ((x, y), label, colour), height in zip(ends, heights, strict=True):
        lead = f"M{x + 4:.1f} {y:.1f}L{right + 14} {height:.1f}"
        yield f'<path d="{lead}" fill="none" stroke="var(--rule)"/>'
        yield svg_text(right + 18, height + 4, _short(label), fill=colour, size=11)


def _some(lines: Sequence[Line]) -> list[Line]:
    if len(lines) <= MAX_LINES:
        return list(lines)
    last = len(lines) - 1
    places = sorted({round(i * last / (MAX_LINES - 1)) for i in range(MAX_LINES)})
    return [lines[place] for place in places]


def _decades(low: float, high: float) -> tuple[int, int]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return (first, last) if last > first else (first - 1, first + 1)


def _place(value: float, low: float, high: float, start: float, end: float) -> float:
    if high <= low:
        return (start + end) / 2
    share = math.log(value / low) / math.log(high / low)
    return start + share * (end - start)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 3 else f"1e{power}"


def _short(label: str) -> str:
    return label if len(label) <= 22 else f"...{label[-19:]}"
