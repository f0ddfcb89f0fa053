"""Sparkline: a series as one line of text, with spikes and non-finite values visible."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from trimtab.core.block import Column, FloatArray

BARS = "▁▂▃▄▅▆▇█"
NONFINITE = "x"
MISSING = " "

_LOG_RATIO = 20.0
"""Over this ratio of the largest value to the median the scale is logarithmic; otherwise one spike
would flatten everything else."""

_SPREAD_RATIO = 4.0
"""Over this ratio of the range to the spread of most values the scale is linear up to the spread
and logarithmic above it: a spike stands out and the rest keeps its shape."""

_HEAD_SHARE, _MIN_CELLS = 0.1, 20
"""The first tenth of a long enough line does not set the scale: an untrained model's loss would
flatten the rest of the run."""


def sparkline(column: Column, width: int) -> str:
    """Return the series in at most `width` characters; each shows the largest of its values."""
    cells = [_cell(column[rows]) for rows in _spans(len(column.values), width)]
    heights = np.array([cell for cell in cells if cell is not None and math.isfinite(cell)])
    if len(heights) >= _MIN_CELLS:
        heights = heights[int(_HEAD_SHARE * len(heights)) :]
    return "".join(_bar(cell, heights) for cell in cells)


def marks(rows: Sequence[tuple[int, str]], length: int, width: int) -> str:
    """Place a label under the character of each row; one without room is left out."""
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
    """Return the value that one character shows: the worst one, or None if nothing was recorded."""
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
    cell = min(max(cell, low), high)
    if low > 0 and high > _LOG_RATIO * middle:
        cell, low, high = math.log(cell), math.log(low), math.log(high)
        spread = 0.0
    else:
        spread = float(np.subtract(*np.percentile(heights, [90, 10])))
    if high <= low:
        share = 0.0
    elif spread > 0 and high - low > _SPREAD_RATIO * spread:
        share = math.asinh((cell - low) / spread) / math.asinh((high - low) / spread)
    else:
        share = (cell - low) / (high - low)
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
