"""Assembles the segments of a journal into one block.

The columns are allocated once, for all files, and each file is read straight into its rows: a
journal of a million records is not copied after reading. The columns of a journal that is too large
for that stay in its files (`SegmentColumns`); each value is read once to find damage.

An axis that is one number in all files, as the attempt of most runs, takes no memory.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from trimtab.core.block import Block, BoolArray, Column, Event, FloatArray, IntArray, StoredColumns
from trimtab.core.signals import Quality
from trimtab.journal.header import AXES
from trimtab.journal.lines import Damage, DamageKind
from trimtab.journal.log_segment import ColumnTarget, LogSegment, ReadLosses
from trimtab.journal.sealed_segment import SealedSegment

Segment = LogSegment | SealedSegment
"""The records and other entries of one file."""


class JournalAxes:
    """The axes of all segments; those that are not constant are filled file by file."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.rows = sum(segment.rows for segment in segments)
        known = [segment.ranges() for segment in segments if segment.rows]
        self._arrays: dict[str, IntArray] = {}
        self._filled = {"tick"}
        """What the segments fill; always the tick, which they report damage by."""
        for name in AXES:
            found = {ranges.get(name) for ranges in known}
            axis = found.pop() if len(found) == 1 else None
            if axis is not None and axis.stride == 0 and name != "tick":
                self._arrays[name] = np.broadcast_to(np.int64(axis.start), (self.rows,))
            else:
                self._arrays[name] = np.empty(self.rows, dtype=np.int64)
                self._filled.add(name)

    @property
    def tick(self) -> IntArray:
        return self._arrays["tick"]

    def part(self, span: slice) -> dict[str, IntArray]:
        """Return the slices of the axes that the segment with these rows must fill."""
        return {name: self._arrays[name][span] for name in AXES if name in self._filled}

    def take(self, order: IntArray | None) -> dict[str, IntArray]:
        """Return all axes, or the rows of an order that `_order` gave."""
        if order is None:
            return dict(self._arrays)
        return {name: axis[order] for name, axis in self._arrays.items()}


class SegmentColumns:
    """The rows of all segments, one after the other.

    A value that cannot be read is missing. What is lost is reported once, when the journal is
    opened.
    """

    def __init__(self, segments: Sequence[Segment], spans: Sequence[slice]) -> None:
        self._segments = segments
        self._spans = spans
        self._starts = [span.start for span in spans]
        self._has = [segment.names() for segment in segments]

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


Progress = Callable[[int, int], None]
"""Called with the number of files read so far and the number of all files."""

MAX_BYTES = 2**28
"""Columns that together are larger than this stay on disk. Chosen: 1,600,000 records of 20 signals
are still read at once."""

_THREADS = min(4, os.cpu_count() or 1)
"""Reading and checksums release the GIL, so two cores take half the time of one."""


@dataclass(slots=True)
class _Table:
    """The columns of all segments, while they are being filled."""

    axes: JournalAxes
    values: FloatArray | None
    """None if the columns stay on disk."""
    present: dict[str, BoolArray]
    """Only for signals that are not recorded in every row."""
    names: list[str]
    lost: BoolArray | None = None
    """Rows that could not be read."""


def assemble(
    segments: Sequence[Segment],
    signals: Collection[str] | None = None,
    *,
    events: Sequence[Event] = (),
    qualities: Mapping[str, Quality] | None = None,
    progress: Progress | None = None,
    find_damage: bool = True,
    max_bytes: int | None = None,
) -> tuple[Block, list[Damage]]:
    """Read the segments into one block by rising tick; return the damage found as well.

    Columns that together are larger than `max_bytes` stay on disk. Without `find_damage` they are
    not read here.
    """
    table = _allocate(segments, signals, MAX_BYTES if max_bytes is None else max_bytes)
    ends = np.cumsum([segment.rows for segment in segments], dtype=np.int64)
    spans = [
        slice(int(end) - segment.rows, int(end))
        for segment, end in zip(segments, ends, strict=True)
    ]
    damage: list[Damage] = []
    fill = partial(_fill, table, find_damage)
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            filled = pool.map(fill, segments, spans)
        except RuntimeError:  # a program that ends starts no threads any more
            filled = map(fill, segments, spans)
        for done, (span, losses) in enumerate(zip(spans, filled, strict=True), 1):
            _strike_out(table, span.start, losses)
            damage.extend(losses.damage)
            if progress is not None:
                progress(done, len(segments))
    order = _order(table, damage)
    if table.values is None:
        rows = range(table.axes.rows) if order is None else order
        read = SegmentColumns(segments, spans).read
        columns: Mapping[str, Column] = StoredColumns(table.names, read, rows)
    else:
        columns = _columns(table, table.values, order)
    axes = table.axes.take(order)
    block = Block(
        step=axes["step"],
        tick=axes["tick"],
        attempt=axes["attempt"],
        data_position=axes["position"],
        columns=columns,
        qualities=dict(qualities or {}),
        events=tuple(sorted(events, key=lambda event: event.tick)),
    )
    return block, damage


def _allocate(
    segments: Sequence[Segment], signals: Collection[str] | None, max_bytes: int
) -> _Table:
    rows = sum(segment.rows for segment in segments)
    complete: dict[str, int] = {}
    for segment in segments:
        for name, everywhere in segment.names().items():
            if signals is None or name in signals:
                complete[name] = complete.get(name, 0) + (segment.rows if everywhere else 0)
    axes = JournalAxes(segments)
    if 8 * rows * len(complete) > max_bytes:
        return _Table(axes=axes, values=None, present={}, names=list(complete))
    return _Table(
        axes=axes,
        # One allocation, not one per signal: the system gives large pages only to large pieces.
        values=np.empty((len(complete), rows)),
        present={n: np.zeros(rows, dtype=np.bool_) for n, full in complete.items() if full < rows},
        names=list(complete),
    )


def _fill(table: _Table, find_damage: bool, segment: Segment, span: slice) -> ReadLosses:
    """Read one segment into its rows; they share no rows, so they can be read in parallel."""
    axes, has = table.axes.part(span), segment.names()
    if table.values is None:  # columns are only read to find damage
        mask = np.empty(segment.rows, dtype=np.bool_)
        scratch = ColumnTarget(np.empty(segment.rows), mask)
        names = table.names if find_damage else ()
        return segment.read(axes, {name: scratch for name in names if name in has})
    columns = {}
    for index, name in enumerate(table.names):
        values, present = table.values[index, span], table.present.get(name)
        if name in has:
            columns[name] = ColumnTarget(values, None if present is None else present[span])
        else:
            values.fill(np.nan)
    return segment.read(axes, columns)


def _strike_out(table: _Table, start: int, losses: ReadLosses) -> None:
    rows = table.axes.rows
    for name, lost in losses.values:
        if table.values is not None:
            span = slice(start + lost.start, start + lost.stop)
            table.values[table.names.index(name), span] = np.nan
            table.present.setdefault(name, np.ones(rows, dtype=np.bool_))[span] = False
    for lost in losses.rows:
        if table.lost is None:
            table.lost = np.zeros(rows, dtype=np.bool_)
        table.lost[start + lost.start : start + lost.stop] = True


def _order(table: _Table, damage: list[Damage]) -> IntArray | None:
    """Return the rows by rising tick, each tick once; None if they are in that order already."""
    ticks = table.axes.tick
    if table.lost is None and (ticks[1:] > ticks[:-1]).all():
        return None
    kept = np.arange(len(ticks)) if table.lost is None else np.flatnonzero(~table.lost)
    # Stable, so that of two records with the same tick the one of the earlier segment comes first.
    order = kept[np.argsort(ticks[kept], kind="stable")]
    again = 1 + np.flatnonzero(np.diff(ticks[order]) == 0)
    if len(again):
        first, last = (int(ticks[order[row]]) for row in (again[0], again[-1]))
        sentence = (
            f"{len(again)} records are in more than one file, between ticks {first} and {last}; "
            "the first of each was kept"
        )
        kind = DamageKind.REPEATED
        damage.append(Damage(kind=kind, file="journal", sentence=sentence, ticks=(first, last)))
    return np.delete(order, again)


def _columns(table: _Table, values: FloatArray, order: IntArray | None) -> dict[str, Column]:
    present = table.present
    if order is not None:
        values = values[:, order]
        present = {name: mask[order] for name, mask in present.items()}
    return {
        name: Column(row, present[name]) if name in present else Column.complete(row)
        for name, row in zip(table.names, values, strict=True)
    }
