"""CellMeans: a loss in means of 8 records, on a grid that does not depend on how the run is cut.

Every loss is first clipped at 4 scales from what was expected, on both sides: a spike or a lucky
batch must not pass for a level.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import RECORDS_PER_CELL, Score, Scores
from trimtab.detect.tools.rows import Seen, Series

MAX_SCALES = 4.0
"""Scales from what was expected at which a loss is clipped."""


class Cell(NamedTuple):
    """The mean of 8 losses in a row, and where they were recorded."""

    mean: float
    first_tick: int
    tick: int
    step: int
    loss: float
    """Tick, step and loss of the last of them."""


@dataclass(frozen=True, slots=True)
class CellArrays:
    """Many cells as columns."""

    mean: FloatArray
    first_tick: IntArray
    tick: IntArray
    step: IntArray
    loss: FloatArray

    def __len__(self) -> int:
        return len(self.mean)

    def after(self, cell: Cell) -> "CellArrays":
        """These cells with one before them."""
        columns = (self.mean, self.first_tick, self.tick, self.step, self.loss)
        return CellArrays(
            *(np.concatenate(([part], column)) for part, column in zip(cell, columns, strict=True))
        )

    def one(self, at: int) -> Cell:
        """One of the cells."""
        return Cell(
            float(self.mean[at]),
            int(self.first_tick[at]),
            int(self.tick[at]),
            int(self.step[at]),
            float(self.loss[at]),
        )


class CellMeans(Stateful):
    """Gathers losses into cells."""

    def __init__(self) -> None:
        self._total = 0.0
        self._count = 0
        self._first_tick = 0

    def update(self, seen: Seen, score: Score | None) -> Cell | None:
        """Add the next finite loss; return the cell that it completes."""
        if not self._count:
            self._total, self._first_tick = 0.0, seen.tick
        self._count += 1
        if score is None:
            self._total += seen.value
        else:
            room = MAX_SCALES * score.scale
            low, high = score.expected - room, score.expected + room
            self._total += min(max(seen.value, low), high)
        if self._count < RECORDS_PER_CELL:
            return None
        self._count = 0
        return Cell(self._total / RECORDS_PER_CELL, self._first_tick, *seen)

    def update_many(self, series: Series, scores: Scores) -> CellArrays:
        """Add the next finite losses; return the cells that they complete."""
        head = min(-self._count % RECORDS_PER_CELL, len(series))
        first = self._update_some(series, scores, 0, head)
        tail = head + (len(series) - head) // RECORDS_PER_CELL * RECORDS_PER_CELL
        firsts, lasts = (
            slice(head, tail, RECORDS_PER_CELL),
            slice(head + RECORDS_PER_CELL - 1, tail, RECORDS_PER_CELL),
        )
        cells = CellArrays(
            mean=_means(series.value[head:tail], scores, head, tail),
            first_tick=series.tick[firsts],
            tick=series.tick[lasts],
            step=series.step[lasts],
            loss=series.value[lasts],
        )
        self._update_some(series, scores, tail, len(series))
        return cells if first is None else cells.after(first)

    def _update_some(self, series: Series, scores: Scores, first: int, last: int) -> Cell | None:
        """Add a few losses one by one; return the cell that the last of them completes."""
        cell = None
        for at in range(first, last):
            cell = self.update(series.one(at), scores.one(at))
        return cell


def _means(values: FloatArray, scores: Scores, first: int, last: int) -> FloatArray:
    """The mean of each 8 clipped values."""
    expected, room = scores.expected[first:last], MAX_SCALES * scores.scale[first:last]
    clipped = np.minimum(np.maximum(values, expected - room), expected + room)
    parts = np.where(np.isnan(room), values, clipped).reshape(-1, RECORDS_PER_CELL)
    total = np.zeros(len(parts))
    for place in range(RECORDS_PER_CELL):  # in order: numpy's sum would round differently
        total = total + parts[:, place]
    return np.asarray(total / RECORDS_PER_CELL)
