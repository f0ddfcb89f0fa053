"""Means over cells of 8 records, and sums over cells: what the level of a loss is judged by.

Neither depends on how a run is cut: cells are counted from the first record.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import RECORDS_PER_CELL, Scores
from trimtab.detect.tools.series import Series

# CellMeans: a loss in means of 8 records, on a grid that does not depend on how the run is cut.
#
# Every loss is first clipped at 4 scales from what was expected, on both sides: a spike or a lucky
# batch must not pass for a level.

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

    def one(self, at: int) -> Cell:
        """Return one of the cells."""
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
        self._values: list[float] = []
        self._ticks: list[int] = []
        """The clipped losses of the cell that is filling, and where they were recorded."""

    def update(self, series: Series, scores: Scores) -> CellArrays:
        """Add the next finite losses; return the cells that they complete."""
        room = MAX_SCALES * scores.scale
        low, high = scores.expected - room, scores.expected + room
        clipped = np.minimum(np.maximum(series.value, low), high)
        clipped = np.where(np.isnan(room), series.value, clipped)
        values = np.concatenate((self._values, clipped))
        ticks = np.concatenate((self._ticks, series.tick)).astype(np.int64)
        last = np.arange(
            RECORDS_PER_CELL - 1 - len(self._values), len(series), RECORDS_PER_CELL, dtype=np.int64
        )
        num_whole = len(last) * RECORDS_PER_CELL
        self._values, self._ticks = values[num_whole:].tolist(), ticks[num_whole:].tolist()
        parts = values[:num_whole].reshape(-1, RECORDS_PER_CELL)
        total = np.zeros(len(parts))
        for place in range(RECORDS_PER_CELL):  # in order: numpy's sum would round differently
            total = total + parts[:, place]
        return CellArrays(
            mean=total / RECORDS_PER_CELL,
            first_tick=ticks[:num_whole:RECORDS_PER_CELL],
            tick=series.tick[last],
            step=series.step[last],
            loss=series.value[last],
        )


# SpanSums: how far the newest 3 to 24 cells lie above three times as many before them.
#
# The sum over a span is made of two sums over half of it, so each costs one addition and rounds the
# same way for one cell and for many.

SPANS = (3, 6, 12, 24)
"""Lengths of "now" in cells of 8 records: each twice the one before. 48 records also average out
the waves of one widely used data order, whose period they happen to be."""

REFERENCE = 3
"""The reference is this many times longer. Source: 2 and 3 measured; 3 finds drifts sooner."""


class Rise(NamedTuple):
    """How far the mean of now lies above the mean of the reference."""

    height: float
    reference: float


class SpanSums(Stateful):
    """Compares the means of the newest cells with those before."""

    def __init__(self, means: Iterable[float] = ()) -> None:
        self._means: deque[float] = deque(maxlen=SPANS[0] - 1)
        self._past = [deque[float](maxlen=REFERENCE * span) for span in SPANS]
        """For each span, its sums that ended at the cells before this one."""
        for mean in means:
            self.add(mean)

    @property
    def is_full(self) -> bool:
        """Whether every span has its whole reference."""
        return len(self._past[-1]) == REFERENCE * SPANS[-1]

    def add(self, mean: float) -> list[Rise | None]:
        """Add the next cell; return the rise over each span, None while it is too early."""
        total: float | None = None
        if len(self._means) == SPANS[0] - 1:
            total = (mean + self._means[1]) + self._means[0]
        self._means.append(mean)
        rises: list[Rise | None] = []
        for span, past in zip(SPANS, self._past, strict=True):
            rise = None
            if total is not None and len(past) == REFERENCE * span:
                before = (past[2 * span] + past[span]) + past[0]
                reference = before / (REFERENCE * span)
                rise = Rise(total / span - reference, reference)
            rises.append(rise)
            if total is not None:
                doubled = total + past[-span] if len(past) >= span else None
                past.append(total)
                total = doubled
        return rises

    def add_many(self, means: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Add many cells when full; return heights and references, one row per span."""
        known = np.concatenate((self._means, means))
        total = (known[2:] + known[1:-1]) + known[:-2]
        self._means.extend(known[-len(self._means) :].tolist())
        heights, references = [], []
        for span, past in zip(SPANS, self._past, strict=True):
            known = np.concatenate((past, total))
            near, middle, far = (known[at * span :][: len(means)] for at in (2, 1, 0))
            reference = ((near + middle) + far) / (REFERENCE * span)
            heights.append(total / span - reference)
            references.append(reference)
            past.extend(known[-len(past) :].tolist())
            total = total + near
        return np.stack(heights), np.stack(references)

    def copy(self) -> "SpanSums":
        """Return independent sums that continue from here."""
        copied = SpanSums()
        copied._means, copied._past = self._means.copy(), [past.copy() for past in self._past]
        return copied
