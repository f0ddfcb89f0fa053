"""Values of one signal and where they were recorded, steps that two runs share, running sums."""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trimtab.core.block import Block, BoolArray, FloatArray, IntArray
from trimtab.core.findings import Finding, Severity
from trimtab.core.state import Stateful


class Point(NamedTuple):
    """One value of one signal, and where it was recorded."""

    tick: int
    step: int
    value: float

    @classmethod
    def at(cls, block: Block, row: int, value: float) -> "Point":
        return cls(int(block.tick[row]), int(block.step[row]), float(value))

    def finding(
        self, detector: str, symptom: str, severity: Severity, signal: str, **details: Any
    ) -> Finding:
        """Return a finding at this point; `details` are other fields of it, such as `expected`."""
        return Finding(
            detector=detector,
            symptom=symptom,
            severity=severity,
            signal=signal,
            step=self.step,
            tick=self.tick,
            **{"value": self.value, **details},
        )


@dataclass(frozen=True, slots=True)
class Series:
    """Many values of one signal, and where they were recorded."""

    tick: IntArray
    step: IntArray
    value: FloatArray

    @classmethod
    def of(cls, block: Block, name: str, rows: IntArray) -> "Series":
        return cls(block.tick[rows], block.step[rows], block.column(name).values[rows])

    def __len__(self) -> int:
        return len(self.tick)

    def __getitem__(self, rows: slice) -> "Series":
        return Series(self.tick[rows], self.step[rows], self.value[rows])

    def one(self, at: int) -> Point:
        return Point(int(self.tick[at]), int(self.step[at]), float(self.value[at]))


def last_rows(steps: IntArray) -> IntArray:
    """Return the row at which each step was made last, in the order of the steps."""
    if (steps[1:] > steps[:-1]).all():  # a long run that never went back needs no sorting
        return np.arange(len(steps))
    _, first = np.unique(steps[::-1], return_index=True)
    return len(steps) - 1 - first


def align(steps: IntArray, others: IntArray) -> tuple[BoolArray, IntArray]:
    """Return which steps are among others, which rise, and the index there of each that is."""
    # Both rise in most runs, so this needs less memory than a sorted union.
    places = np.searchsorted(others, steps).clip(max=max(len(others) - 1, 0))
    is_common = others[places] == steps if len(others) else np.zeros(len(steps), dtype=np.bool_)
    return is_common, places


def windows_over(values: FloatArray, length: int, stride: int = 1) -> FloatArray:
    """Return each `length` neighbours, from every `stride`-th value on, as rows of a view."""
    # `sliding_window_view` takes twenty times as long, which shows in windows over few values.
    rows = max(len(values) - length, -1) // stride + 1
    return np.ndarray((rows, length), values.dtype, values, 0, (stride * 8, 8))


def over_neighbours(pick: np.ufunc, values: FloatArray, count: int) -> FloatArray:
    """Return the minimum or maximum of each `count` neighbours, in few passes: by doubling."""
    reach = 1
    while reach < count:
        more = min(reach, count - reach)
        values = pick(values[:-more], values[more:])
        reach += more
    return values


# RunningSums: sums over the last 2, 4, 8, ... values, without drift and in a fixed order.
#
#     sum of 2k values now = sum of k values now + sum of k values, k records ago
#
# Each sum is one addition, nothing is ever subtracted, and the order of additions does not depend
# on how a series is cut: every bit is the same.


class RunningSums(Stateful):
    """Sums over the last 2, 4, ..., 2**doublings values; zeros before the first value."""

    def __init__(self, doublings: int) -> None:
        lengths = [2**power for power in range(doublings)]
        self._past = [deque([0.0] * length, maxlen=length) for length in lengths]

    def add_many(self, values: FloatArray) -> list[FloatArray]:
        """Add the next values; return the sums that end with each of them, shortest first."""
        sums = []
        for past in self._past:
            known = np.concatenate((past, values))
            doubled = values + known[: len(values)]
            past.extend(known[-len(past) :].tolist())
            sums.append(doubled)
            values = doubled
        return sums

    def copy(self) -> "RunningSums":
        copied = RunningSums(0)
        copied._past = [past.copy() for past in self._past]
        return copied

    def clear(self) -> None:
        for past in self._past:
            past.extend([0.0] * len(past))
