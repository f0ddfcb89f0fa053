"""RunningSums: sums over the last 2, 4, 8, ... values, without drift and in one order.

    sum of 2k values now = sum of k values now + sum of k values, k records ago

Each sum is one addition, no value is ever taken away again, and the order of additions does not
depend on how a series is cut: value by value or all at once, every bit is the same.
"""

from collections import deque
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray


class RunningSums:
    """Sums over the last 2, 4, ..., 2**doublings values; before the first value are zeros."""

    def __init__(self, doublings: int) -> None:
        self.longest = 2**doublings
        self._past: list[deque[float]] = []
        for power in range(doublings):
            self._past.append(deque([0.0] * 2**power, maxlen=2**power))

    def add(self, value: float) -> list[float]:
        """Take the next value; return the sums that end with it, shortest first."""
        sums = []
        for past in self._past:
            doubled = value + past[0]
            past.append(value)
            sums.append(doubled)
            value = doubled
        return sums

    def sweep(self, values: FloatArray) -> list[FloatArray]:
        """Take the next values; return the sums that end with each of them, shortest first."""
        sums = []
        for past in self._past:
            known = np.concatenate((past, values))
            doubled = values + known[: len(values)]
            past.extend(known[-len(past) :].tolist())
            sums.append(doubled)
            values = doubled
        return sums

    def copy(self) -> "RunningSums":
        """Sums that go on from here on their own."""
        twin = RunningSums(0)
        twin.longest, twin._past = self.longest, [past.copy() for past in self._past]
        return twin

    def clear(self) -> None:
        """Begin again from zeros."""
        for past in self._past:
            past.extend([0.0] * len(past))

    def state_dict(self) -> dict[str, Any]:
        """All that the sums remember."""
        return {"past": [list(past) for past in self._past]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the sums that `state_dict` described."""
        for past, known in zip(self._past, state["past"], strict=True):
            past.extend(known)
