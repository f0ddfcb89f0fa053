"""Domain: the scale on which a loss is compared with its past; LossStart: where it began.

A loss that is never negative is compared by its logarithm. The noise of a loss grows and shrinks
with the loss: that of a classifier falls from 2 to 0.001, and its batches still differ by the same
factors. On a logarithmic scale such noise is even, and a long tail above a level near 0 is none.
From its first negative value on a loss is compared as it is.
"""

import math
from collections.abc import Sequence

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.robust import TINY, median
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import BaselineSpec

SMALLEST, LARGEST = 1e-9, 1e100
"""Losses under the first count as it: a hinge or triplet loss is exactly 0 in many batches. Losses
beyond the second count as it: their differences must not overflow."""


class Domain:
    """A scale, and the way back from it."""

    def __init__(self, *, is_log: bool) -> None:
        self.is_log = is_log
        # Floor of the scale: 0.2 % of the loss; between 0.05 and 0.5 % the results are equal.
        self.baseline = BaselineSpec(
            falls=True,
            relative_floor=0.0 if is_log else 0.002,
            absolute_floor=0.002 if is_log else 0.0,
        )

    def of(self, loss: float) -> float:
        if self.is_log:
            return math.log(min(max(loss, SMALLEST), LARGEST))
        return min(max(loss, -LARGEST), LARGEST)

    def of_many(self, losses: FloatArray) -> FloatArray:
        if not self.is_log:
            return np.clip(losses, -LARGEST, LARGEST)
        # numpy's logarithm may round differently.
        clipped = np.clip(losses, SMALLEST, LARGEST).tolist()
        return np.fromiter(map(math.log, clipped), dtype=np.float64, count=len(clipped))

    def back(self, value: float) -> float:
        return math.exp(min(value, 700.0)) if self.is_log else value

    def share(self, rise: float, level: float) -> float:
        return rise if self.is_log else rise / max(abs(level), TINY)


# LossStart: where the loss began, and whether what it does now says anything.
#
# A loss that is about as high as at its start has no direction yet: that of an adversary never gets
# one. Nor has a loss that wandered up from its best level before. Their ups and downs say nothing
# about the model.

START_RECORDS, MAX_FIRST_STEP = 8, 500
"""Losses whose median is the start of a run, if the first of them comes by this step: a log that
begins later does not show the start."""

DIRECTION, SUDDEN_DIRECTION, ABOVE_START, NEAR_BEST = 0.2, 0.1, 0.05, 0.1
"""The share by which a loss must have fallen under its start, or have risen above it, so that a
slow rise says anything; the same two for a sudden rise; and by which a loss that falls may be above
its best level when it rises slowly. Source: the losses of both sides of an adversary fall by up to
13 % before they wander, those with a penalty by 5 % (`scripts/bench judge`); a language model from
scratch falls by a fifth in its first dozens of steps."""


SMALL_SHARE = 0.1
"""A loss under this share of its start is near 0, where it moves by any factor: regressions and
moving targets do. A language model is never there. Chosen."""


class LossStart(Stateful):
    """The first losses of a run, by their logarithm."""

    not_saved = ("_domain",)

    def __init__(self, domain: Domain, *, is_measure: bool = False) -> None:
        """Create it; `is_measure` if the user says that the loss always says something."""
        self._domain = domain
        self._losses: list[float] = []
        self._level = math.inf
        self._is_known = is_measure or not domain.is_log

    def observe(self, losses: Sequence[float], step: int) -> None:
        """Add the next losses; `step` is that of the first of them."""
        if self._is_known or not losses:
            return
        if not self._losses and step > MAX_FIRST_STEP:
            self._is_known = True
            return
        self._losses += losses[: START_RECORDS - len(self._losses)]
        if len(self._losses) == START_RECORDS:
            self._level, self._losses, self._is_known = median(self._losses), [], True

    def is_news(self, *, best: float, before: float, now: float, is_slow: bool) -> bool:
        """Return whether a rise says anything, given the best level so far.

        Args:
            best: The lowest level so far.
            before: The level before the rise.
            now: The level after it.
            is_slow: Whether the rise took many records: a loss that wanders rises so too.
        """
        if not self._domain.is_log:
            return True
        if math.isfinite(self._level) and max(before, now) < self._level + math.log(SMALL_SHARE):
            return False
        below, above = (DIRECTION,) * 2 if is_slow else (SUDDEN_DIRECTION, ABOVE_START)
        has_direction = best < self._level - below or now > self._level + above
        return has_direction and not (is_slow and before - best > NEAR_BEST)


POSITIVE, SIGNED = Domain(is_log=True), Domain(is_log=False)
