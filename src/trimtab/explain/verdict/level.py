"""Levels of a noisy loss, and how far each can be wrong.

A level is the mean of the middle half of some records: nearly as exact as the mean of all, and deaf
to single spikes. Its error is measured on the run itself, by how much neighbouring blocks of its
records differ: batches that resemble each other make the error larger than the noise of one record
suggests.
"""

import math

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.robust import SIGMA, TINY

MIN_BLOCKS = 12
"""Blocks whose differences say how much a level scatters. Chosen: their median is off by 20 %."""

MIDMEAN = 1.2
"""Error of a mean of the middle half, in those of a mean of all, for Gaussian noise (1.09) and for
longer tails (up to 1.3)."""

HUBER = 1.5
"""Deviations beyond which a record pulls a line no harder. Source: 95 % as efficient as least
squares for Gaussian noise at 1.345; losses have longer tails."""

MEAN_OF_GAUSSIAN = 1.128
"""Mean absolute difference of two Gaussian values, in deviations."""


def midmean(values: FloatArray) -> float:
    """Return the mean of the middle half; the median of fewer than four values."""
    ordered = np.sort(values)
    count = len(ordered)
    if count < 4:
        return float(np.median(ordered))
    return float(ordered[count // 4 : count - count // 4].mean())


def noise(values: FloatArray) -> float:
    """Return the deviation of one record from a level, blind to a trend."""
    jumps = np.diff(values)
    if len(jumps) < 2:
        return 0.0
    spread = _deviation(jumps) / math.sqrt(2)
    if spread == 0:  # most neighbours are equal: a rounded loss
        spread = 0.3 * float(np.abs(jumps).mean()) / MEAN_OF_GAUSSIAN
    return spread


def level_error(history: FloatArray, count: int, sigma: float) -> float:
    """Return the standard error of a level of `count` records of a run with this history.

    Never under what independent records of noise `sigma` would give.
    """
    least = MIDMEAN * sigma / math.sqrt(count)
    width = min(count, len(history) // MIN_BLOCKS)
    if width < 2:
        return 1.3 * least  # too few records to see how they hang together
    blocks = np.sort(history[len(history) % width :].reshape(-1, width), axis=1)
    levels = (
        np.median(blocks, axis=1)
        if width < 4
        else blocks[:, width // 4 : width - width // 4].mean(axis=1)
    )
    scatter = _deviation(np.diff(levels)) / math.sqrt(2)
    return max(least, scatter * math.sqrt(width / count))


def fit_line(x: FloatArray, y: FloatArray) -> tuple[float, float, float, float]:
    """Return the value of a robust line at x = 0, its slope, and the standard errors of both."""
    count = len(x)
    if count < 3 or np.ptp(x) == 0:
        return midmean(y), 0.0, noise(y) / math.sqrt(max(count, 1)), 0.0
    weights = np.ones(count)
    for _ in range(5):  # the weights hardly change after three
        total = weights.sum()
        x_mean, y_mean = (weights @ x) / total, (weights @ y) / total
        apart = x - x_mean
        width = weights @ (apart * apart)
        slope = (weights @ (apart * (y - y_mean))) / width
        rest = y - y_mean - slope * apart
        scale = SIGMA * float(np.median(np.abs(rest))) + TINY
        limit = HUBER * scale
        weights = limit / np.maximum(np.abs(rest), limit)
    scale *= math.sqrt(count / (count - 2))
    value = float(y_mean - slope * x_mean)
    value_error = scale * math.sqrt(1 / total + x_mean * x_mean / width)
    return value, float(slope), float(value_error), float(scale / math.sqrt(width))


def longest_repeat(values: FloatArray) -> int:
    """Return how often the same value came in a row at most: a rounded loss repeats itself."""
    changes = np.flatnonzero(np.diff(values) != 0)
    return int(np.diff(np.concatenate(([-1], changes, [len(values) - 1]))).max())


def _deviation(values: FloatArray) -> float:
    return SIGMA * float(np.median(np.abs(values - np.median(values))))
