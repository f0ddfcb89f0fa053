"""Trailing windows whose numbers do not depend on how a series is cut."""

import math
from collections.abc import Collection

import numpy as np

from trimtab.core.block import FloatArray


def trailing_moments(series: FloatArray, window: int) -> tuple[FloatArray, FloatArray]:
    """Mean and population deviation of the `window` values before each value that has this many.

    Every window is summed in the same order, value by value, whatever the length of `series`: a
    running or pairwise sum would round differently for different cuts of one run.
    """
    count = max(len(series) - window, 0)
    total = np.zeros(count)
    squares = np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):  # losses near 1e308 may overflow to inf
        for offset in range(window):
            total += series[offset : offset + count]
        mean = total / window
        for offset in range(window):
            squares += (series[offset : offset + count] - mean) ** 2
        return mean, np.sqrt(squares / window)


def moments(window: Collection[float]) -> tuple[float, float]:
    """Mean and population deviation of one window, rounded as `trailing_moments` rounds."""
    total = squares = 0.0
    for value in window:
        total += value
    mean = total / len(window)
    for value in window:
        squares += (value - mean) * (value - mean)  # `**` would raise where this overflows
    return mean, math.sqrt(squares / len(window))
