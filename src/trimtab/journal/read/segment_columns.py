"""SegmentColumns: the columns of a journal in its files, read as they are asked for."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from trimtab.core.block import Column
from trimtab.journal.read.segment import ColumnTarget, Segment


class SegmentColumns:
    """The rows of all segments, one after the other.

    A value that cannot be read is missing. What is lost is reported once, when the journal is
    opened.
    """

    def __init__(
        self, segments: Sequence[Segment], spans: Sequence[slice], names: Sequence[str]
    ) -> None:
        self._segments = segments
        self._spans = spans
        self._starts = [span.start for span in spans]
        self._has = [segment.names() for segment in segments]
        self.names = names
        """The signals."""

    @property
    def rows(self) -> int:
        """The number of rows of all segments."""
        return int(self._spans[-1].stop) if self._spans else 0

    def read(self, name: str, start: int, stop: int) -> Column:
        """Consecutive rows of a signal; each file is read as a whole."""
        values = np.full(stop - start, np.nan)
        present = np.zeros(stop - start, dtype=np.bool_)
        first = max(bisect_right(self._starts, start) - 1, 0)
        for number in range(first, len(self._segments)):
            span = self._spans[number]
            if span.start >= stop:
                break
            if name not in self._has[number] or span.stop <= start:
                continue
            column = _read(self._segments[number], name)
            low, high = max(span.start, start), min(span.stop, stop)
            part = slice(low - span.start, high - span.start)
            values[low - start : high - start] = column.values[part]
            present[low - start : high - start] = column.present[part]
        return Column(values, present) if not present.all() else Column.complete(values)


def _read(segment: Segment, name: str) -> Column:
    column = Column.missing(segment.rows)
    target = ColumnTarget(column.values, column.present)
    losses = segment.read({"tick": np.empty(segment.rows, dtype=np.int64)}, {name: target})
    for lost in (*losses.rows, *(rows for _, rows in losses.values)):
        column.values[lost], column.present[lost] = np.nan, False
    return column
