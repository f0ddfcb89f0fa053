"""One signal as a line of a chart: decimated, with what is not finite and what was rolled back.

kept       the records that led to the end of the run, one line in the order of steps
gone       the records of earlier attempts that were done again, one line per attempt
nonfinite  stretches of steps at which NaN or an infinity was recorded
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trimtab.core.block import Block, BoolArray, Column, FloatArray, IntArray
from trimtab.core.records.rollbacks import taken_back
from trimtab.report.pages.decimate import BUCKETS, minmax_rows, stretches

DETAIL_ROWS = 4096
"""Records around incidents that are kept one by one, over all incidents of a run."""

DETAIL_MARGIN = 256
"""Records before and after an incident that are kept one by one."""

MAX_GONE = 12
"""Earlier attempts drawn; a run that went back more often shows the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLines:
    """A run made ready for its charts: which records count, and where every record is kept."""

    block: Block
    is_gone: BoolArray
    """Records that were done again later."""
    attempts: tuple[tuple[int, int], ...]
    """First row and the row after the last of each attempt."""
    is_detail: BoolArray
    """Records that are kept one by one."""

    @classmethod
    def of(cls, block: Block, incident_ticks: Sequence[tuple[int, int]] = ()) -> "RunLines":
        """The lines of a run; `incident_ticks` are onset and end of incidents, the worst first."""
        attempts = _attempts(block)
        return cls(
            block=block,
            is_gone=_superseded(block, attempts),
            attempts=attempts,
            is_detail=_detail(block, incident_ticks),
        )

    def line(self, name: str, buckets: int = BUCKETS) -> dict[str, Any]:
        """One signal as JSON values."""
        column = self.block.column(name)
        kept = self._points(column, np.flatnonzero(~self.is_gone), buckets)
        gone = []
        for first, last in self.attempts[-MAX_GONE - 1 :]:
            rows = first + np.flatnonzero(self.is_gone[first:last])
            if len(rows) and (part := self._points(column, rows, max(buckets // 4, 1)))["x"]:
                gone.append(part)
        line: dict[str, Any] = {"label": name, "signal": name, **kept}
        if gone:
            line["gone"] = gone
        nonfinite = column.nonfinite
        if nonfinite.any():
            line["nonfinite"] = [
                [int(self.block.step[a]), int(self.block.step[b]), int(is_gone)]
                for is_gone, mask in ((True, self.is_gone), (False, ~self.is_gone))
                for a, b in stretches(nonfinite & mask, buckets // 4)
            ]
        return line

    def _points(self, column: Column, rows: IntArray, buckets: int) -> dict[str, Any]:
        """The points of these rows, with a gap wherever values are not finite."""
        finite = column.finite[rows]
        good = rows[finite]
        values = column.values[good]
        chosen = good[minmax_rows(values, buckets)]
        detail = good[self.is_detail[good]]
        if len(detail):
            chosen = np.union1d(chosen, detail)
        x: list[int] = self.block.step[chosen].tolist()
        y: list[float | None] = list(short(column.values[chosen]))
        bad = rows[column.present[rows] & ~finite]
        places, first = np.unique(np.searchsorted(chosen, bad), return_index=True)
        steps = self.block.step[bad[first]]
        for place, step in zip(places[::-1].tolist(), steps[::-1].tolist(), strict=True):
            if 0 < place < len(chosen):  # a line must not run through a NaN
                x.insert(place, step)
                y.insert(place, None)
        return {"x": x, "y": y}


def short(values: FloatArray) -> list[float]:
    """The values in six significant digits: more cannot be seen, and takes room."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _attempts(block: Block) -> tuple[tuple[int, int], ...]:
    if not len(block):
        return ()
    step, attempt = block.step, block.attempt
    went_back = (step[1:] < step[:-1]) | (attempt[1:] != attempt[:-1])
    edges = [0, *(np.flatnonzero(went_back) + 1).tolist(), len(block)]
    return tuple(pairwise(edges))


def _superseded(block: Block, attempts: Sequence[tuple[int, int]]) -> BoolArray:
    """The records whose step was done again in a later attempt, or was rolled back."""
    is_gone = taken_back(block)
    earliest = np.iinfo(np.int64).max
    for first, last in reversed(attempts):
        is_gone[first:last] |= block.step[first:last] >= earliest
        earliest = min(earliest, int(block.step[first:last].min()))
    return is_gone


def _detail(block: Block, ticks: Sequence[tuple[int, int]]) -> BoolArray:
    is_detail = np.zeros(len(block), dtype=np.bool_)
    left = DETAIL_ROWS
    for onset, last in ticks:
        start = max(block.row_of(onset) - DETAIL_MARGIN, 0)
        stop = min(block.row_of(last) + DETAIL_MARGIN, start + 4 * DETAIL_MARGIN, len(block))
        left -= max(stop - start, 0)
        if left < 0:
            break
        is_detail[start:stop] = True
    return is_detail
