"""RangeTest: whether the newest cells all lie outside the range of the cells before them.

    high  - - - - - - - - - - - - - - - - -   . . .   newest: all of them outside, and far enough
          . '  .   ' . .  '  .  ' .  .  '
    low   - - - - - - - - - - - - - - - - -

A cell is one number computed from some records. The test uses only the order of numbers: it does
not estimate noise, and for independent cells chance can be counted. That all of the 6 newest are
outside the 24 before them happens once in 300,000 tests.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trimtab.core.block import BoolArray, FloatArray
from trimtab.core.state import Stateful
from trimtab.detect.tools.series import over_neighbours

_CELLS_AT_ONCE = 1024
"""Cells that are judged at once: a finding wastes the work on those after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpec:
    """How many cells are compared, and how far outside is far enough."""

    before: int
    newest: int
    widths: float = 0.0
    """Required distance from the range, in widths of the range."""
    times: float = 1.0
    """Required multiple of the upper end of the range; for values that are never negative."""
    downwards: bool = True
    """Whether below the range counts as well."""


class OutOfRange(NamedTuple):
    """Newest cells that were all outside."""

    value: float
    """The last of them."""
    low: float
    high: float
    scatter: float = 1.0
    """The highest of the newest cells over the lowest; for values that are never negative."""

    @property
    def widths(self) -> float:
        """How far outside the range the last one is, in widths of the range."""
        return max(self.value - self.high, self.low - self.value) / (self.high - self.low)


class RangeTest(Stateful):
    """Judges cells; after a finding it starts again, so that the new range becomes normal."""

    __slots__ = ("_cells", "_num_compared", "_spec")
    not_saved = ("_num_compared", "_spec")

    def __init__(self, spec: RangeSpec) -> None:
        self._spec = spec
        self._num_compared = spec.before + spec.newest
        self._cells: list[float] = []

    def restart(self) -> None:
        self._cells = []

    def update(self, cell: float) -> OutOfRange | None:
        return next((found for _, found in self.update_many(np.array([cell]))), None)

    def update_many(self, cells: FloatArray) -> Iterator[tuple[int, OutOfRange]]:
        """Judge the next cells; yield where they are out of range."""
        at = 0
        while at < len(cells):
            part = cells[at : at + _CELLS_AT_ONCE]
            known = np.concatenate((self._cells, part))
            if len(known) < self._num_compared:
                self._cells = known.tolist()
                return
            count = len(known) - self._num_compared + 1
            low, high = (
                over_neighbours(pick, known, self._spec.before)[:count]
                for pick in (np.minimum, np.maximum)
            )
            places = np.flatnonzero(self._is_outside(known[self._spec.before :], low, high))
            if not len(places):
                self._cells = known[1 - self._num_compared :].tolist()
                at += len(part)
                continue
            first = int(places[0])
            place = first + self._num_compared - 1 - len(self._cells)
            self._cells = []
            newest = known[first + self._spec.before : first + self._num_compared]
            yield (
                at + place,
                OutOfRange(
                    float(part[place]),
                    float(low[first]),
                    float(high[first]),
                    _scatter(float(newest.min()), float(newest.max())),
                ),
            )
            at += place + 1

    def _is_outside(self, cells: FloatArray, low: FloatArray, high: FloatArray) -> BoolArray:
        """Return which of the newest cells, from each of these on, are all outside a range."""
        spec = self._spec
        room = spec.widths * (high - low)
        lowest = over_neighbours(np.minimum, cells, spec.newest)
        outside = lowest > np.maximum(high + room, high * spec.times)
        if spec.downwards:
            outside |= over_neighbours(np.maximum, cells, spec.newest) < low - room
        return np.asarray(outside & (high > low))


def _scatter(low: float, high: float) -> float:
    return high / low if low > 0 else math.inf
