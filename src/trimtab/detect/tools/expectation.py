"""Expectation: what a signal should be next and how far off it usually is, from a past window.

The same arithmetic is written twice: for one window in plain floats, because for the one record of
a live step numpy costs more than the arithmetic, and for many windows at once, because a log has a
million. Both use the same order statistics and round in the same places, so they agree to the last
bit; a property test checks it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.robust import (
    TINY,
    jump_sigma,
    jump_sigmas,
    median,
    medians,
    sigma_around,
    sigmas_around,
)

MOST_SPREAD = 3.0
"""Residuals may be this many times wider than jumps, no more. Slow waves of the data double them
(measured); a curved start makes them twenty times wider and would blind the first records."""

SLOPE_TRUST = 0.5
"""The share of a falling trend that is assumed to continue. Source: measured on public runs: the
whole slope raises false alarms in two thirds of the healthy ones, because a loss falls ever
slower."""

LOCAL_RECORDS = 16
"""The expectation is never under the median of this many newest records: only a loss that really
rises is a spike. Results are equal from 8 to 24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSpec:
    """What is known in advance about a signal."""

    falls: bool
    """Whether it may have a falling trend, as a loss has."""
    relative_floor: float
    """The smallest scale, as a share of the level."""
    absolute_floor: float
    """The smallest scale, in the unit of the signal."""


class Expectation(NamedTuple):
    """What one window says about the records after it."""

    start: float
    slope: float
    floor: float
    scale: float

    def at(self, age: int) -> float:
        """What is expected of the record `age` records after the window was measured."""
        return max(self.start + self.slope * age, self.floor)


def expect(window: Sequence[float], gap: int, spec: BaselineSpec) -> Expectation:
    """The expectation from one window that ended `gap` records ago."""
    count = len(window)
    middle = (count - 1) / 2
    slope = 0.0
    level_of = window
    if spec.falls:
        third = count // 3
        rise = median(window[-third:]) - median(window[:third])
        slope = min(rise / (count - third), 0.0)
        level_of = [value - slope * (at - middle) for at, value in enumerate(window)]
    level = median(level_of)
    spread = sigma_around(level, level_of)
    jumps = jump_sigma(window)
    return Expectation(
        start=level + SLOPE_TRUST * slope * (middle + gap),
        slope=SLOPE_TRUST * slope,
        floor=median(window[-LOCAL_RECORDS:]),
        scale=max(
            jumps,
            min(spread, MOST_SPREAD * jumps),
            spec.relative_floor * abs(level),
            spec.absolute_floor,
            TINY,
        ),
    )


def expect_many(
    windows: FloatArray, gap: int, spec: BaselineSpec
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Start, slope, floor and scale for each row of windows, as `expect` gives them."""
    count = windows.shape[1]
    middle = (count - 1) / 2
    slope = np.zeros(len(windows))
    level_of = windows
    if spec.falls:
        third = count // 3
        rise = medians(windows[:, -third:]) - medians(windows[:, :third])
        slope = np.minimum(rise / (count - third), 0.0)
        level_of = windows - slope[:, None] * (np.arange(count) - middle)
    level = medians(level_of)
    spread = sigmas_around(level, level_of)
    jumps = jump_sigmas(windows)
    scale = np.maximum(jumps, np.minimum(spread, MOST_SPREAD * jumps))
    scale = np.maximum(scale, spec.relative_floor * np.abs(level))
    return (
        level + SLOPE_TRUST * slope * (middle + gap),
        SLOPE_TRUST * slope,
        medians(windows[:, -LOCAL_RECORDS:]),
        np.maximum(scale, max(spec.absolute_floor, TINY)),
    )
