"""Robust statistics: medians, and deviations that a few outliers do not move.

Each is written for plain floats, because for the one record of a live step numpy costs more than
the arithmetic, and some also for the rows of an array, because a log has a million records. Both
use the same order statistics and round in the same places: they agree to the last bit.
"""

import math
from collections.abc import Iterable, Sequence
from operator import sub

import numpy as np
from numpy.typing import NDArray

SIGMA = 1.4826
"""The median absolute deviation of Gaussian noise, times this, is its standard deviation."""

JUMP_SIGMA = SIGMA / math.sqrt(2)
"""The same for differences of neighbours, which are wider by the root of 2."""

TINY = 1e-12
"""The smallest scale of all, so that a constant signal can be divided by it."""


def median(values: Iterable[float]) -> float:
    """Return the median of plain floats."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return 0.5 * (ordered[half - 1] + ordered[half])


def medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each row, as `median` gives it."""
    return _medians_in_place(rows.copy())


def sigma_around(middle: float, values: Iterable[float]) -> float:
    """Return the robust standard deviation of values around their median, which is given."""
    return SIGMA * median([abs(value - middle) for value in values])


def sigmas_around(middles: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the robust standard deviation of each row, as `sigma_around` gives it."""
    distances = rows - middles[:, None]
    return SIGMA * _medians_in_place(np.abs(distances, out=distances))


def jump_sigma(values: Sequence[float]) -> float:
    """Return the robust standard deviation of a noise, from the differences of neighbours.

    A slow trend or wave hardly changes it.
    """
    return JUMP_SIGMA * median(map(abs, map(sub, values[1:], values)))


def jump_sigmas(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what `jump_sigma` gives, for each row."""
    jumps = rows[:, 1:] - rows[:, :-1]
    return JUMP_SIGMA * _medians_in_place(np.abs(jumps, out=jumps))


def mean_and_deviation(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and population deviation of finite values; infinite if they overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.mean(values)), float(np.std(values))


def _medians_in_place(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each row, and leave the rows sorted."""
    # A whole sort: numpy's is vectorised and twice as fast as its partition at two places.
    rows.sort(axis=1)
    half = rows.shape[1] // 2
    if rows.shape[1] % 2:
        return rows[:, half]
    return np.asarray(0.5 * (rows[:, half - 1] + rows[:, half]))


MAX_DIGITS = 12
"""Decimals after which a number was not printed with a few digits."""


def grain(value: float) -> float:
    """Return the largest 10^-k or 2^-k of which a number is a multiple: how finely it can have been
    rounded."""
    binary = 1 / value.as_integer_ratio()[1]
    for digits in range(MAX_DIGITS):
        if 10.0**-digits <= binary or round(value, digits) == value:
            return max(10.0**-digits, binary)
    return binary


def is_one_grain(before: float, after: float) -> bool:
    """Return whether two numbers are as near to each other as rounding allows them to differ."""
    return abs(after - before) <= GRAINS * min(grain(before), grain(after))


GRAINS = 2.5
"""Grains by which neighbours of a rounded series differ that hardly moves. Chosen: a plateau that
repeats a value 32 times has less noise than one."""
