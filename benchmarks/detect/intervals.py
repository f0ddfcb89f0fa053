"""How sure a count is."""

import math

import numpy as np

TAIL = 0.025
"""On each side: intervals of 95 %."""


def poisson_interval(count: int) -> tuple[float, float]:
    """The exact interval (Garwood) of the rate behind a count of rare events."""
    upper = _rate_with(count, TAIL)
    lower = _rate_with(count - 1, 1 - TAIL) if count else 0.0
    return lower, upper


def share_of(count: int, total: int) -> str:
    """A count of so many, as a share with its exact interval (Clopper and Pearson), in percent."""
    if not total:
        return "-"
    low = 0.0 if count == 0 else _share_with(count - 1, total, 1 - TAIL)
    high = 1.0 if count == total else _share_with(count, total, TAIL)
    return f"{count} of {total}; {100 * count / total:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _share_with(count: int, total: int, chance: float) -> float:
    """The share at which `count` or fewer of `total` have the given chance."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = (
            math.comb(total, at) * middle**at * (1 - middle) ** (total - at)
            for at in range(count + 1)
        )
        if sum(terms) > chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _rate_with(count: int, chance: float) -> float:
    """The rate at which `count` or fewer events have the given chance."""
    low, high = 0.0, count + 10 * math.sqrt(count + 1) + 10
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(count, middle) > chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(count: int, rate: float) -> float:
    """The chance of `count` or fewer events."""
    if rate == 0:
        return 1.0
    events = np.arange(count + 1)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(events[1:]))))
    return float(np.exp(events * math.log(rate) - rate - log_factorials).sum())
