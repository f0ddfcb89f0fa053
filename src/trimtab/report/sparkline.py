"""Sparkline: a whole series in one line of text, spikes and non-finite values included."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from trimtab.core.block import Column, FloatArray

BARS = "▁▂▃▄▅▆▇█"
NONFINITE = "x"
MISSING = " "

_LOG_RATIO = 20.0
"""Beyond this ratio of the largest to the middle value the scale is logarithmic, or one spike
would flatten all else."""


def sparkline(column: Column, width: int) -> str:
    """The series in at most `width` characters; each shows the largest of its values."""
    cells = [_cell(column[rows]) for rows in _spans(len(column.values), width)]
    heights = np.array([cell for cell in cells if cell is not None and math.isfinite(cell)])
    return "".join(_bar(cell, heights) for cell in cells)


def marks(rows: Sequence[tuple[int, str]], length: int, width: int) -> str:
    """A line that carries a label under the character of each row; crowded ones give way."""
    line = [" "] * width
    spans = list(_spans(length, width))
    free = 0
    for row, label in rows:
        at = next((i for i, span in enumerate(spans) if row < span.stop), width)
        if at >= free and at + len(label) <= width:
            line[at : at + len(label)] = label
            free = at + len(label)
    return "".join(line).rstrip()


def _spans(length: int, width: int) -> list[slice]:
    width = min(length, width)
    edges = [length * i // width for i in range(width + 1)] if width else [0]
    return [slice(a, b) for a, b in pairwise(edges)]


def _cell(column: Column) -> float | None:
    """What one character shows: the worst value in it, or None if there is none."""
    if column.nonfinite.any():
        return math.nan
    values = column.values[column.finite]
    return float(values.max()) if len(values) else None


def _bar(cell: float | None, heights: FloatArray) -> str:
    if cell is None:
        return MISSING
    if not math.isfinite(cell):
        return NONFINITE
    low, middle, high = float(heights.min()), float(np.median(heights)), float(heights.max())
    if low > 0 and high > _LOG_RATIO * middle:
        cell, low, high = math.log(cell), math.log(low), math.log(high)
    share = (cell - low) / (high - low) if high > low else 0.0
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
