"""Trailing windows whose numbers do not depend on how a series is cut."""

from collections.abc import Sequence

import numpy as np

from trimtab.core.block import FloatArray


def trailing_moments(series: FloatArray, window: int) -> tuple[FloatArray, FloatArray]:
    """Mean and population deviation of the `window` values before each value that has as many.

    Every window is added up in the same order, value by value, whatever the length of `series`:
    a running or pairwise sum would round differently for different cuts of one run.
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


def mean_and_deviation(values: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Mean and population deviation of finite values; infinite if they overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.mean(values)), float(np.std(values))
