"""Expectation: what a signal should be next and how far off it usually is, from a past window.

The same arithmetic stands here twice: for one window in plain floats, because a live step brings
one record and numpy would cost more than the sums, and for many windows at once, because a log
brings a million. Both take the same order statistics and round in the same places, so they agree to
the last bit; a property test holds them to it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import sub

import numpy as np

from trimtab.core.block import FloatArray

SIGMA = 1.4826
"""The median deviation of Gaussian noise, times this, is its standard deviation."""

JUMP_SIGMA = SIGMA / math.sqrt(2)
"""The same for the differences of neighbours, which are wider by the root of 2."""

MOST_SPREAD = 3.0
"""Residuals may be this many times wider than jumps, no more. Slow waves of the data double them
(measured); a curved start makes them twenty times wider and would blind the first records."""

SLOPE_TRUST = 0.5
"""The share of a falling trend that is taken to go on. Source: measured on public runs: the whole
slope raises false alarms in two thirds of the healthy ones, because a loss falls ever slower."""

LOCAL_RECORDS = 16
"""What is expected never lies under the median of the newest so many records: only a loss that
really rises is a spike. Plateau of equal results: 8 to 24."""

TINY = 1e-12
"""Under every scale, so that a constant signal can be divided by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is known beforehand about a signal."""

    falls: bool
    """Whether it may have a falling trend, as a loss has."""
    relative_floor: float
    """The smallest scale, as a share of the level."""
    absolute_floor: float
    """The smallest scale in the signal's own unit."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one window says of the records after it."""

    start: float
    slope: float
    floor: float
    scale: float

    def at(self, age: int) -> float:
        """What is expected of the record so many after the window was looked at."""
        return max(self.start + self.slope * age, self.floor)


def expect(window: Sequence[float], gap: int, shape: Shape) -> Expectation:
    """The expectation from one window that ended `gap` records ago."""
    count = len(window)
    middle = (count - 1) / 2
    slope = 0.0
    level_of = window
    if shape.falls:
        third = count // 3
        rise = median(window[-third:]) - median(window[:third])
        slope = min(rise / (count - third), 0.0)
        level_of = [value - slope * (at - middle) for at, value in enumerate(window)]
    level = median(level_of)
    spread = SIGMA * median([abs(value - level) for value in level_of])
    jumps = JUMP_SIGMA * median(map(abs, map(sub, window[1:], window)))
    return Expectation(
        start=level + SLOPE_TRUST * slope * (middle + gap),
        slope=SLOPE_TRUST * slope,
        floor=median(window[-LOCAL_RECORDS:]),
        scale=max(
            jumps,
            min(spread, MOST_SPREAD * jumps),
            shape.relative_floor * abs(level),
            shape.absolute_floor,
            TINY,
        ),
    )


def expect_many(
    windows: FloatArray, gap: int, shape: Shape
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Start, slope, floor and scale for each row of windows, as `expect` gives them."""
    count = windows.shape[1]
    middle = (count - 1) / 2
    slope = np.zeros(len(windows))
    level_of = windows
    if shape.falls:
        third = count // 3
        rise = medians(windows[:, -third:]) - medians(windows[:, :third])
        slope = np.minimum(rise / (count - third), 0.0)
        level_of = windows - slope[:, None] * (np.arange(count) - middle)
    level = medians(level_of)
    spread = SIGMA * medians(np.abs(level_of - level[:, None]))
    jumps = JUMP_SIGMA * medians(np.abs(windows[:, 1:] - windows[:, :-1]))
    scale = np.maximum(jumps, np.minimum(spread, MOST_SPREAD * jumps))
    scale = np.maximum(scale, shape.relative_floor * np.abs(level))
    return (
        level + SLOPE_TRUST * slope * (middle + gap),
        SLOPE_TRUST * slope,
        medians(windows[:, -LOCAL_RECORDS:]),
        np.maximum(scale, max(shape.absolute_floor, TINY)),
    )


def median(values: Iterable[float]) -> float:
    """The median of plain floats."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return 0.5 * (ordered[half - 1] + ordered[half])


def medians(rows: FloatArray) -> FloatArray:
    """The median of each row, as `median` gives it."""
    # A whole sort: numpy's is vectorised and five times faster than its partition at two places.
    ordered = np.sort(rows, axis=1)
    half = rows.shape[1] // 2
    if rows.shape[1] % 2:
        return ordered[:, half]
    return np.asarray(0.5 * (ordered[:, half - 1] + ordered[:, half]))
