"""The token histogram of a batch against the run's: as text, and as an SVG.

Two groups of bars: the tokens that are named, and all tokens by how frequent they are in the run.
"""

from collections.abc import Iterator

from trimtab.explain.batches.batch_report import BatchReport, MixShift
from trimtab.explain.batches.token_counts import TokenShare
from trimtab.report.escaping import printable
from trimtab.report.svg import svg_document, svg_text

WIDTH, LABEL, VALUE, BAR, GAP = 760, 270, 64, 9, 30
"""Of the SVG, in pixels: all of it, its labels, the figure after a bar, a bar, a row."""

_HERE, _RUN, _LINE = "var(--alarm)", "var(--mute)", "var(--rule)"
_TEXT_BAR = 20
_MAX_LABEL = 36

_TITLES = ("named tokens", "all tokens, by frequency in the run")

Row = tuple[str, float, float]
"""Label, share here, share in the run."""


def histogram_rows(batch: BatchReport) -> tuple[list[Row], list[Row]]:
    """The named tokens, and the bands of frequency."""
    tokens, bands = batch.histogram
    return (
        [(_label(token), token.share, token.run_share) for token in tokens],
        [(band.name, band.share, band.run_share) for band in bands],
    )


def _label(token: TokenShare) -> str:
    return f"token {token.id}" if token.text is None else f"token {token.id} {token.text!r}"


def text_histogram(batch: BatchReport) -> Iterator[str]:
    """The histogram in lines of text; bars are as long as the share is large."""
    for title, rows in zip(_TITLES, histogram_rows(batch), strict=True):
        if not rows:
            continue
        labels = [_short(label) for label, _, _ in rows]
        width = max(map(len, (title, *labels)))
        largest = max(max(here, run) for _, here, run in rows) or 1.0
        yield f"{title:<{width}}  {'here':<{_TEXT_BAR + 8}}  the run before"
        for label, (_, here, run) in zip(labels, rows, strict=True):
            cells = (f"{100 * share:5.1f} % {_bar(share / largest)}" for share in (here, run))
            left, right = cells
            yield f"{label:<{width}}  {left:<{_TEXT_BAR + 8}}  {right}".rstrip()
        yield ""


def _bar(share: float) -> str:
    return "#" * round(_TEXT_BAR * share)


def _short(text: str) -> str:
    text = printable(text).replace("`", "'")
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 3]}..."


def draw_tokens(batch: BatchReport, *, is_file: bool = True) -> str:
    """The histogram as an SVG document, of its own or inside a page."""
    parts: list[str] = []
    y = 26
    if batch.shift is not None:
        subject = f"{batch.shift.num_batches} batches from {_where(batch.shift)} on"
    elif batch.num_unusual_rows:
        plural = "s" if batch.num_unusual_rows > 1 else ""
        subject = (
            f"{batch.num_unusual_rows} unusual sequence{plural} of the batch at {_where(batch)}"
        )
    else:
        subject = f"the batch at {_where(batch)}"
    parts.append(svg_text(16, y, f"Tokens of {subject}", weight="bold", size=14))
    y += 22
    parts.append(_rect(16, y - 9, 12, 9, _HERE) + svg_text(34, y, "here"))
    parts.append(_rect(84, y - 9, 12, 9, _RUN) + svg_text(102, y, "the run before"))
    y += 26
    for title, rows in zip(_TITLES, histogram_rows(batch), strict=True):
        if rows:
            parts.append(svg_text(16, y, title, weight="bold"))
            y += 10
            drawn, y = _draw_group(rows, y)
            parts += drawn
            y += 22
    return svg_document(WIDTH, y, f"Tokens of {subject}", "\n".join(parts), is_file=is_file)


def _where(batch: BatchReport | MixShift) -> str:
    known = batch.data_position >= 0
    return f"position {batch.data_position}" if known else f"step {batch.step}"


def _draw_group(rows: list[Row], y: int) -> tuple[list[str], int]:
    largest = max(max(here, run) for _, here, run in rows) or 1.0
    room = WIDTH - LABEL - VALUE - 16
    parts = []
    for label, here, run in rows:
        y += GAP
        middle = y - GAP // 2
        parts.append(svg_text(LABEL - 10, middle + 4, _short(label), anchor="end"))
        for share, colour, top in ((here, _HERE, middle - BAR), (run, _RUN, middle)):
            length = room * share / largest
            parts.append(_rect(LABEL, top, max(length, 0.5), BAR - 1, colour))
            value = f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
            parts.append(svg_text(LABEL + length + 5, top + BAR - 1, value, size=10))
    top = y - GAP * len(rows)
    parts.append(f'<path d="M{LABEL} {top + 2}V{y - 2}" stroke="{_LINE}"/>')
    return parts, y


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}"/>'
