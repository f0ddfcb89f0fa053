"""ScoreHistory: how high each test's score rises in this run when nothing is wrong.

A run with heavy tails needs higher thresholds than one with light tails, so a threshold is a
multiple of the highest score of this run. Three bounds limit it: a prior until the run is known, a
floor, and a cap, because one missed spike must not raise the threshold for the next.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.state import Stateful

RECORDS_PER_ENTRY = 32
"""Quiet records whose highest score makes one entry."""

ENTRIES_REMEMBERED = 64
"""Entries that are remembered: 2,048 records. Source: measured, 512 records triple the false
alarms."""

FACTOR = 1.75
"""A score this many times the highest is beyond what the run does by itself. Source: measured on
tuning runs together with the rank."""

MIN_ENTRIES = 8
"""Entries after which the run is known well enough for a threshold under the prior."""

RETURN_RECORDS = 100_000
"""A score that a run reaches by itself at most once in this many records is evidence. Source:
chosen, a tenth of a false alarm in 10,000 records."""

UPPER = 0.9
"""The tail is measured from the median of the entries to this quantile: up to a tenth of the
entries may hold a missed spike."""

NO_SCORE = -9.0
"""Lower than any score that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The range of a threshold, and which of the highest entries it follows."""

    prior: float
    """The lowest threshold before the run is known."""
    low: float
    """The lowest once it is known."""
    cap: float
    """The highest: without a cap, one missed spike hides two thirds of the next ones (measured)."""
    rank: int
    """Follow the highest, second or third highest entry: this many missed spikes, less one, do not
    count."""
    factor: float = FACTOR
    power: int = 1
    """The threshold is the entry to this power, times the factor. The heavier the tail, the
    further the next maximum lies beyond the last one: 2 sets a high threshold for a wild run and a
    low one for a calm run."""
    max_level: float = 0.0
    """An alarm also needs a score beyond the return level of this run, as far as that is under
    this."""

    def times(self, threshold_scale: float) -> "Bounds":
        """Return the same bounds with thresholds this many times higher."""
        return dataclasses.replace(
            self,
            prior=threshold_scale * self.prior,
            low=threshold_scale * self.low,
            cap=threshold_scale * self.cap,
            max_level=threshold_scale * self.max_level,
        )


class ScoreHistory(Stateful):
    """The highest scores of a number of tests over the quiet past."""

    not_saved = ("_num_tests",)

    def __init__(self, num_tests: int) -> None:
        self._num_tests = num_tests
        self._entries: deque[list[float]] = deque(maxlen=ENTRIES_REMEMBERED)
        self._current = [NO_SCORE] * num_tests
        self._num_current = 0

    def update(self, scores: FloatArray) -> None:
        """Add the scores of many quiet records, one column each."""
        length = scores.shape[1]
        head = min(RECORDS_PER_ENTRY - self._num_current, length) if self._num_current else 0
        if head:
            self._update_part(scores[:, :head])
        entries = (length - head) // RECORDS_PER_ENTRY
        tail = head + entries * RECORDS_PER_ENTRY
        if entries:
            whole = scores[:, max(head, tail - ENTRIES_REMEMBERED * RECORDS_PER_ENTRY) : tail]
            highest = whole.reshape(self._num_tests, -1, RECORDS_PER_ENTRY).max(axis=2)
            self._entries.extend(np.maximum(highest, NO_SCORE).T.tolist())
        if tail < length:
            self._update_part(scores[:, tail:])

    def drop_current(self) -> None:
        """Leave out the records since the last entry: there was an alarm, they were not quiet."""
        self._current = [NO_SCORE] * self._num_tests
        self._num_current = 0

    def clear(self) -> None:
        self._entries.clear()
        self.drop_current()

    def threshold(self, test: int, bounds: Bounds) -> float:
        lowest = bounds.low if len(self._entries) >= MIN_ENTRIES else bounds.prior
        return _threshold([entry[test] for entry in self._entries], bounds, lowest)

    def return_level(self, test: int) -> float:
        """Return the score that this test exceeds once in 100,000 quiet records; 0 if unknown.

        The entries are maxima of blocks, so their distribution is Gumbel's if the tail of the
        scores is not heavier than exponential: its two parameters follow from two quantiles.
        Source: Coles, An Introduction to Statistical Modeling of Extreme Values (2001), chapter 3.
        """
        count = len(self._entries)
        if count < MIN_ENTRIES:
            return 0.0
        highest = sorted(max(entry[test], 0.0) for entry in self._entries)
        middle, upper = highest[count // 2], highest[round(UPPER * (count - 1))]
        return middle + _TAIL * (upper - middle)

    def lowest_thresholds(self, bounds: Sequence[Bounds], records: int) -> list[float]:
        """Return what no threshold can fall under during the next `records` quiet records."""
        leaving = max(len(self._entries) + records // RECORDS_PER_ENTRY + 1 - ENTRIES_REMEMBERED, 0)
        staying = list(self._entries)[leaving:]
        return [
            _threshold([entry[test] for entry in staying], bound, bound.low)
            if len(staying) >= bound.rank
            else bound.low
            for test, bound in enumerate(bounds)
        ]

    def _update_part(self, scores: FloatArray) -> None:
        highest = scores.max(axis=1).tolist()
        self._current = [max(pair) for pair in zip(self._current, highest, strict=True)]
        self._num_current += scores.shape[1]
        if self._num_current == RECORDS_PER_ENTRY:
            self._entries.append(self._current)
            self.drop_current()


def _quantile(probability: float) -> float:
    return -math.log(-math.log(probability))


_TAIL = (_quantile(1 - RECORDS_PER_ENTRY / RETURN_RECORDS) - _quantile(0.5)) / (
    _quantile(UPPER) - _quantile(0.5)
)
"""How far the return level lies beyond the median, in distances from there to the upper quantile:
4.1."""


def _threshold(highest: list[float], bounds: Bounds, lowest: float) -> float:
    """Return the threshold that follows from some entries of one test."""
    if not highest:
        return lowest
    highest.sort()
    entry = max(highest[-min(bounds.rank, len(highest))], 0.0)
    return min(max(bounds.factor * entry**bounds.power, lowest), bounds.cap)
