"""Small charts in a grid, as SVG by hand: the colours follow the reader's theme."""

import html
from collections.abc import Iterable, Sequence

_COLUMNS = 4
WIDTH, HEIGHT = 210, 110
_GAP, _TITLE, _MARGIN = 18, 20, 4
_MAX_TITLE = 36

_STYLE = (
    "text{font:11px sans-serif;fill:#444}.f{fill:none;stroke:#bbb}polyline{fill:none}"
    ".l{stroke:#1f5fa8}.t{stroke:#9aa0a6}.n{stroke:#d98200;stroke-width:.6}.i{fill:#c0392b;opacity:.18}"
    ".x{stroke:#c0392b;fill:none}@media(prefers-color-scheme:dark){text{fill:#ccc}.f{stroke:#555}"
    ".l{stroke:#7db4f0}.t{stroke:#7d848c}.n{stroke:#f0a840}.i{fill:#ff7b6b;opacity:.28}"
    ".x{stroke:#ff7b6b}}"
)
"""l a loss, t that of a twin, n a norm, i an incident, x what is not finite and an onset."""


def across(share: float) -> float:
    """Return the pixel of a place from 0 to 1."""
    return _MARGIN + (WIDTH - 2 * _MARGIN) * share


def line(kind: str, points: Iterable[tuple[float, float]]) -> str:
    """Return a line through points from 0 to 1."""
    up = HEIGHT - 2 * _MARGIN
    places = " ".join(f"{across(x):.1f},{_MARGIN + up * (1 - y):.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{places}"/>'


def draw_grid(titles: Sequence[str], charts: Sequence[str]) -> str:
    """Return a document with a chart under each title."""
    rows = -(-len(charts) // _COLUMNS)
    width = _COLUMNS * (WIDTH + _GAP) - _GAP
    height = rows * (HEIGHT + _TITLE + _GAP) - _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
    ]
    frame = f'<rect class="f" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}"/>'
    for place, (title, chart) in enumerate(zip(titles, charts, strict=True)):
        x = place % _COLUMNS * (WIDTH + _GAP)
        y = place // _COLUMNS * (HEIGHT + _TITLE + _GAP)
        short = title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 1]}…"
        parts.append(f'<g transform="translate({x} {y})">')
        parts.append(f'<text x="0" y="13">{html.escape(short)}</text>')
        parts.append(f'<g transform="translate(0 {_TITLE})">{frame}{chart}</g></g>')
    return "\n".join([*parts, "</svg>"]) + "\n"
