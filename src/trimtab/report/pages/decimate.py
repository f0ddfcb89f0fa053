"""Decimation for charts: fewer points, the same picture, true peaks.

Every bucket of records keeps its smallest and its largest value, at their own steps. A spike of one
step stays as high as it was; averages and LTTB sampling would lower or drop it.
"""

import numpy as np

from trimtab.core.block import BoolArray, FloatArray, IntArray

BUCKETS = 2000
"""Buckets of one series: more than the pixels of a chart on most screens."""


def minmax_rows(values: FloatArray, buckets: int = BUCKETS) -> IntArray:
    """The rows of the smallest and largest value of each bucket, in order; values are finite."""
    length = len(values)
    if length <= 2 * buckets:
        return np.arange(length)
    size = -(-length // buckets)
    whole = length // size
    parts = values[: whole * size].reshape(whole, size)
    starts = np.arange(whole) * size
    rows = [starts + parts.argmin(axis=1), starts + parts.argmax(axis=1), np.array([0, length - 1])]
    rest = values[whole * size :]
    if len(rest):
        rows.append(whole * size + np.array([rest.argmin(), rest.argmax()]))
    return np.unique(np.concatenate(rows))


def stretches(mask: BoolArray, buckets: int = BUCKETS) -> list[tuple[int, int]]:
    """First and last row of each stretch of true values; those in one bucket are joined."""
    rows = np.flatnonzero(mask)
    if not len(rows):
        return []
    reach = max(-(-len(mask) // buckets), 1)
    breaks = np.flatnonzero(np.diff(rows) > reach)
    firsts = rows[np.concatenate([[0], breaks + 1])]
    lasts = rows[np.concatenate([breaks, [len(rows) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
