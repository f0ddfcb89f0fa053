"""QuietRecord: how high each test's score rises in this run when nothing is wrong.

A run with heavy tails must be asked for more than one with light tails, so a threshold is a
multiple of the run's own record. Three bounds keep it honest: the prior before the run is known, a
floor, and a cap, because one missed spike must not raise the bar for the next.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray

BLOCK = 32
"""Quiet records whose highest scores make one entry."""

BLOCKS = 64
"""Entries that are remembered: 2,048 records. Source: measured, 512 records triple the false
alarms."""

FACTOR = 1.75
"""A score this many times the record is beyond what the run does by itself. Source: measured on
tuning runs together with the rank."""

LEARNT_BLOCKS = 8
"""Entries after which the run is known well enough for a threshold under the prior, unless its
bounds ask for more."""

NOTHING = -9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Between what a threshold may lie, and which of the highest entries is the record."""

    prior: float
    """Before the run is known."""
    low: float
    """At least, once it is known."""
    cap: float
    """At most: without a cap, one missed spike hides two thirds of the next ones (measured)."""
    rank: int
    """The highest, second or third highest entry: so many missed spikes, less one, do not count."""
    factor: float = FACTOR
    power: int = 1
    """The threshold is the record to this power, times the factor. The heavier the tail, the
    further the next record lies beyond the last one: 2 asks a wild run for much, a calm one for
    little."""
    learnt: int = LEARNT_BLOCKS

    def times(self, threshold_scale: float) -> "Bounds":
        """The same with thresholds so many times higher."""
        return dataclasses.replace(
            self,
            prior=threshold_scale * self.prior,
            low=threshold_scale * self.low,
            cap=threshold_scale * self.cap,
        )


class QuietRecord:
    """The highest scores of a number of tests over the quiet past."""

    def __init__(self, num_tests: int) -> None:
        self._num_tests = num_tests
        self._entries: deque[list[float]] = deque(maxlen=BLOCKS)
        self._current = [NOTHING] * num_tests
        self._in_block = 0

    def see(self, scores: Sequence[float]) -> None:
        """Take the scores of a quiet record."""
        current = self._current
        for test, score in enumerate(scores):
            if score > current[test]:
                current[test] = score
        self._in_block += 1
        if self._in_block == BLOCK:
            self._entries.append(current)
            self.discard()

    def sweep(self, scores: FloatArray) -> None:
        """Take the scores of many quiet records, one column each."""
        length = scores.shape[1]
        head = min(BLOCK - self._in_block, length) if self._in_block else 0
        if head:
            self._take_part(scores[:, :head])
        blocks = (length - head) // BLOCK
        tail = head + blocks * BLOCK
        if blocks:
            whole = scores[:, max(head, tail - BLOCKS * BLOCK) : tail]
            highest = whole.reshape(self._num_tests, -1, BLOCK).max(axis=2)
            self._entries.extend(np.maximum(highest, NOTHING).T.tolist())
        if tail < length:
            self._take_part(scores[:, tail:])

    def discard(self) -> None:
        """Leave out the records since the last entry: an alarm came, they were not quiet."""
        self._current = [NOTHING] * self._num_tests
        self._in_block = 0

    def clear(self) -> None:
        """Forget the run."""
        self._entries.clear()
        self.discard()

    def threshold(self, test: int, bounds: Bounds) -> float:
        """What a score of this test must exceed now."""
        least = bounds.low if len(self._entries) >= bounds.learnt else bounds.prior
        return _threshold([entry[test] for entry in self._entries], bounds, least)

    def least_thresholds(self, bounds: Sequence[Bounds], records: int) -> list[float]:
        """What no threshold can fall under while the next so many quiet records come."""
        leaving = max(len(self._entries) + records // BLOCK + 1 - BLOCKS, 0)
        staying = list(self._entries)[leaving:]
        return [
            _threshold([entry[test] for entry in staying], bound, bound.low)
            if len(staying) >= bound.rank
            else bound.low
            for test, bound in enumerate(bounds)
        ]

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "entries": [list(entry) for entry in self._entries],
            "current": list(self._current),
            "in_block": self._in_block,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the record that `state_dict` described."""
        self._entries = deque((list(entry) for entry in state["entries"]), maxlen=BLOCKS)
        self._current, self._in_block = list(state["current"]), int(state["in_block"])

    def _take_part(self, scores: FloatArray) -> None:
        highest = scores.max(axis=1).tolist()
        self._current = [max(pair) for pair in zip(self._current, highest, strict=True)]
        self._in_block += scores.shape[1]
        if self._in_block == BLOCK:
            self._entries.append(self._current)
            self.discard()


def _threshold(highest: list[float], bounds: Bounds, least: float) -> float:
    """The threshold from the highest scores of a number of blocks."""
    if not highest:
        return least
    highest.sort()
    record = max(highest[-min(bounds.rank, len(highest))], 0.0)
    return min(max(bounds.factor * record**bounds.power, least), bounds.cap)
