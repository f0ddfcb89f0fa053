"""Mean and deviation of the values before each value, as the peers' rules take them."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import FloatArray

_ROWS_AT_ONCE = 2048
"""Windows that are worked on together: 16 MB for a window of 1,000."""


def trailing(
    values: FloatArray, window: int, *, least: int | None = None, ddof: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of up to `window` values before each value.

    NaN where fewer than `least` (the whole window, unless told) came before; a NaN among them
    makes both NaN, as it does in the peers' code.
    """
    mean, deviation = np.full(len(values), np.nan), np.full(len(values), np.nan)
    for row in range(window if least is None else least, min(window, len(values))):
        mean[row], deviation[row] = np.mean(values[:row]), np.std(values[:row], ddof=ddof)
    if len(values) > window:
        windows = sliding_window_view(values, window)[:-1]
        for begin in range(0, len(windows), _ROWS_AT_ONCE):
            part = windows[begin : begin + _ROWS_AT_ONCE]
            rows = slice(window + begin, window + begin + len(part))
            mean[rows] = part.mean(axis=1)
            deviation[rows] = part.std(axis=1, ddof=ddof)
    return mean, deviation
