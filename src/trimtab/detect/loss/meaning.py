r"""LossMeaning: whether the loss of this run measures its progress, by what the run has recorded.

    start o
           \  levels: up to 16 means over equal parts of the run, by medians of 8 records
            o_
              o__o__o--o__o     fell: from the start to the lowest level
                                rose: all rises from level to level, added up

A loss that learning moves falls, and what it rises again is less. That of a policy or an adversary
goes up and down about as much, so its level says nothing about the model. Whether it is negative
decides nothing: likelihoods of densities and bounds on evidence are, and they fall.

ComparisonScale: the scale on which a loss is compared with its past; LossStart: where it began.

A loss that is never negative is compared by its logarithm. The noise of a loss grows and shrinks
with the loss: that of a classifier falls from 2 to 0.001, and its batches still differ by the same
factors. On a logarithmic scale such noise is even, and a long tail above a level near 0 is none.
From its first negative value on a loss is compared as it is.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from trimtab.core.block import Block, FloatArray
from trimtab.core.robust import TINY, median, medians
from trimtab.core.signals import LOSS, WITHOUT_DIRECTION
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import BaselineSpec

SMALLEST, LARGEST = 1e-9, 1e100
"""Losses under the first count as it: a hinge or triplet loss is exactly 0 in many batches. Losses
beyond the second count as it: their differences must not overflow."""


class ComparisonScale:
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

    def __init__(self, domain: ComparisonScale, *, is_measure: bool = False) -> None:
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


POSITIVE, SIGNED = ComparisonScale(is_log=True), ComparisonScale(is_log=False)


RECORDS_PER_MEDIAN, MAX_LEVELS, MIN_MEDIANS = 8, 16, 16
"""Losses in a median, levels that are kept (then each two become one), and medians that are needed:
128 records. Source: losses of policies and adversaries may fall for the first hundred."""

RISES_COUNT = 2.0
"""Times the sum of all rises that a loss must have fallen. Chosen on the tuning half of
`scripts/bench judge`: kinds that learn reach 3.5 and mostly 30, adversaries stay under 2."""

UNKNOWN, FALLS, WANDERS = 0, 1, 2


class LossMeaning(Stateful):
    """What is known about the loss of a run, by the tick since which it is known."""

    not_saved = ("_objective",)

    def __init__(self, objective: str) -> None:
        """Create it; `objective` is what the user says: auto, measure or surrogate."""
        self._objective = objective
        self._policy_since: int | None = None
        self._negative_since: int | None = None
        """The ticks of the first record with a policy's signal, and with a negative loss."""
        self._start: float | None = None
        self._start_since = 0
        self._shows_start = False
        self._group: list[float] = []
        self._total, self._count, self._per_level = 0.0, 0, 1
        """Of the medians of the next level, and how many make one."""
        self._levels: list[float] = []
        self._ticks, self._known = [-1], [UNKNOWN]
        """What the levels show, and since when."""

    def is_surrogate(self, tick: int) -> bool:
        """Return whether the loss was known at a record to be of a policy or an adversary."""
        if self._objective != "auto":
            return self._objective == "surrogate"
        if self._policy_since is not None and tick >= self._policy_since:
            return True
        is_negative = self._negative_since is not None and tick >= self._negative_since
        return is_negative and self._at(tick) != FALLS

    def has_direction(self, tick: int) -> bool | None:
        """Return whether the loss was known at a record to measure progress; None if too few losses
        were there to say."""
        if self._objective != "auto":
            return self._objective == "measure"
        if self.is_surrogate(tick):
            return False
        return {FALLS: True, WANDERS: False}.get(self._at(tick))

    def start(self, tick: int) -> float | None:
        """Return the loss at the start of the run, as known at a record; None if the log begins
        later."""
        return self._start if self._shows_start and tick >= self._start_since else None

    def observe(self, block: Block) -> None:
        if self._objective != "auto" or not len(block):
            return
        if self._policy_since is None:
            shows = np.zeros(len(block), dtype=np.bool_)
            for name in WITHOUT_DIRECTION & block.columns.keys():
                shows |= block.columns[name].present
            if shows.any():
                self._policy_since = int(block.tick[int(np.argmax(shows))])
        column = block.column(LOSS)
        rows = np.flatnonzero(column.finite)
        if not len(rows):
            return
        losses, ticks = column.values[rows], block.tick[rows]
        if self._negative_since is None and (losses < 0).any():
            self._negative_since = int(ticks[int(np.argmax(losses < 0))])
        if self._start is None and not self._group:
            self._shows_start = bool(block.step[rows[0]] <= MAX_FIRST_STEP)
        before = len(self._group)
        losses = np.concatenate((self._group, np.clip(losses, -LARGEST, LARGEST)))
        whole = len(losses) - len(losses) % RECORDS_PER_MEDIAN
        self._group = losses[whole:].tolist()
        groups = medians(losses[:whole].reshape(-1, RECORDS_PER_MEDIAN))
        ends = ticks[RECORDS_PER_MEDIAN - 1 - before :: RECORDS_PER_MEDIAN]
        self._add(groups.tolist(), ends.tolist())

    def _at(self, tick: int) -> int:
        return self._known[bisect_right(self._ticks, tick) - 1]

    def _add(self, values: Sequence[float], ticks: Sequence[int]) -> None:
        """Add medians, by the ticks at which they were known, level by level."""
        at = 0
        while at < len(values):
            if self._start is None:
                self._start, self._start_since = values[at], ticks[at]
            some = values[at : at + self._per_level - self._count]
            for value in some:  # not sum(): it may round differently
                self._total += value
            self._count += len(some)
            at += len(some)
            if self._count == self._per_level:
                self._end_level(self._start, ticks[at - 1])

    def _end_level(self, start: float, tick: int) -> None:
        """See what the levels show, now that one more is complete."""
        self._levels.append(self._total / self._count)
        self._total, self._count = 0.0, 0
        known = self._judge(start)
        if known != self._known[-1]:
            self._ticks.append(tick)
            self._known.append(known)
        if len(self._levels) == MAX_LEVELS:
            self._levels = [0.5 * (a + b) for a, b in zip(*[iter(self._levels)] * 2, strict=True)]
            self._per_level *= 2

    def _judge(self, start: float) -> int:
        levels = self._levels
        if len(levels) * self._per_level < MIN_MEDIANS:
            return UNKNOWN
        fell = start - min(levels)
        rose = sum(max(after - before, 0.0) for before, after in pairwise(levels))
        if fell > RISES_COUNT * rose:
            return FALLS
        # A log that begins later does not show what fell before.
        return WANDERS if self._shows_start else FALLS
