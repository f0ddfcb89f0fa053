"""Record and Block: the numbers of one step, and of consecutive steps as columns.

Readers and journals make blocks, a live run makes records; detectors read both.

Per record: step, tick, attempt, data position. Per signal: one float64 column and one mask.
NaN, +inf, -inf and missing are four different things: the first three are recorded values (mask
true), the last is not (mask false).

The columns of a journal that is larger than memory stay on disk until they are asked for
(`StoredColumns`); a block of them behaves like any other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.core.signals import Quality
from trimtab.core.text import counted, digits, listed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """One signal over consecutive records: its values, and which of them were recorded."""

    values: FloatArray
    """The recorded numbers; NaN where nothing was recorded."""

    present: BoolArray
    """True where a value was recorded, finite or not."""

    @classmethod
    def missing(cls, length: int) -> Column:
        """Create a column without any recorded value."""
        return cls(np.full(length, np.nan), np.zeros(length, dtype=np.bool_))

    @classmethod
    def complete(cls, values: FloatArray) -> Column:
        """Create a column in which every value was recorded."""
        # A broadcast mask takes no memory: most columns of a long run are complete.
        return cls(values, np.broadcast_to(np.True_, values.shape))

    @property
    def recorded(self) -> bool:
        """Whether any value was recorded."""
        return bool(self.present.any())

    @property
    def finite(self) -> BoolArray:
        """True where a finite value was recorded."""
        return self.present & np.isfinite(self.values)

    @property
    def nonfinite(self) -> BoolArray:
        """True where NaN or an infinity was recorded; missing is not non-finite."""
        return self.present & ~np.isfinite(self.values)

    def __repr__(self) -> str:
        values = self.values[self.finite]
        span = f", {digits(values.min())} to {digits(values.max())}" if len(values) else ""
        recorded, nonfinite = int(self.present.sum()), int(self.nonfinite.sum())
        bad = f", {nonfinite:,} not finite" if nonfinite else ""
        return f"<Column: {recorded:,} of {counted(len(self.values), 'value')} recorded{bad}{span}>"

    def __getitem__(self, rows: slice) -> Column:
        return Column(self.values[rows], self.present[rows])


CACHE_BYTES = 2**26
"""Bytes of columns that a block keeps. Source: 200 signals of one segment of a journal, twice."""

Rows = range | NDArray[np.int64]
"""The rows of the store that a block consists of."""


class StoredColumns(Mapping[str, Column]):
    """The columns of some rows of a store, read on demand; the last ones are cached."""

    def __init__(
        self, names: Sequence[str], read: Callable[[str, int, int], Column], rows: Rows
    ) -> None:
        """`read` returns the rows of a signal between two places in the store."""
        self._names = names
        self._known = frozenset(names)
        self._read_rows = read
        self._rows = rows
        self._kept: OrderedDict[str, Column] = OrderedDict()

    @property
    def length(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def cut(self, start: int, stop: int) -> StoredColumns:
        """Return the columns of consecutive rows."""
        return StoredColumns(self._names, self._read_rows, self._rows[start:stop])

    def __getitem__(self, name: str) -> Column:
        if name not in self._known:
            raise KeyError(name)
        column = self._kept.pop(name, None)  # stored again below, as the newest
        if column is None:
            column = self._read(name)
            size = max(9 * self.length, 1)
            while self._kept and (len(self._kept) + 1) * size > CACHE_BYTES:
                self._kept.popitem(last=False)
        self._kept[name] = column
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, name: str) -> Column:
        rows = self._rows
        if not len(rows):
            return Column.missing(0)
        if isinstance(rows, range):
            return self._read_rows(name, rows.start, rows.stop)
        first = int(rows.min())
        column = self._read_rows(name, first, int(rows.max()) + 1)
        return Column(column.values[rows - first], column.present[rows - first])


NO_POSITION = -1
"""The data position of a record whose batch is not known."""

_RECORDS_AT_ONCE = 1024
"""Records of a long block that are turned into plain Python at a time: a bound on memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something known that happened between two records."""

    kind: str
    tick: int
    """The tick of the next record."""
    step: int
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """One step in plain Python: for a single record, numpy costs more than the arithmetic."""

    step: int
    tick: int
    signals: Mapping[str, float]
    """Only what was recorded, finite or not; a signal that is absent is missing."""
    attempt: int = 0
    data_position: int = NO_POSITION
    qualities: Mapping[str, Quality] = field(default_factory=dict)
    """Of the signals that are worse than raw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive records as columns, with the events between them."""

    step: IntArray
    tick: IntArray
    attempt: IntArray
    data_position: IntArray
    columns: Mapping[str, Column]
    qualities: Mapping[str, Quality] = field(default_factory=dict)
    """Of the signals that are worse than raw."""
    events: Sequence[Event] = ()

    def __post_init__(self) -> None:
        length = len(self.tick)
        axes = {"step": self.step, "attempt": self.attempt, "data_position": self.data_position}
        for name, axis in axes.items():
            if len(axis) != length:
                raise ValueError(f"{name} has {len(axis)} entries, tick has {length}")
        if isinstance(self.columns, StoredColumns):  # one by one they would all be read from disk
            if self.columns.length != length:
                raise ValueError(f"the columns have {self.columns.length} entries, not {length}")
        else:
            for name, column in self.columns.items():
                if len(column.values) != length or len(column.present) != length:
                    raise ValueError(f"column {name!r} does not have {length} entries")
        if not (self.tick[1:] > self.tick[:-1]).all():
            raise ValueError("ticks must rise from record to record")

    @classmethod
    def empty(cls) -> Block:
        """Create a block without records."""
        none = np.empty(0, dtype=np.int64)
        return cls(step=none, tick=none, attempt=none, data_position=none, columns={})

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Column],
        *,
        step: IntArray,
        tick: IntArray | None = None,
        attempt: IntArray | None = None,
        data_position: IntArray | None = None,
        qualities: Mapping[str, Quality] | None = None,
        events: Sequence[Event] = (),
    ) -> Block:
        """Create a block from its columns; the default of the rest is a run without restarts."""
        length = len(step)
        return cls(
            step=step,
            tick=np.arange(length) if tick is None else tick,
            attempt=np.zeros(length, dtype=np.int64) if attempt is None else attempt,
            data_position=np.full(length, NO_POSITION) if data_position is None else data_position,
            columns=columns,
            qualities=qualities or {},
            events=events,
        )

    @classmethod
    def from_records(cls, records: Sequence[Record], events: Iterable[Event] = ()) -> Block:
        """Create a block from single records, which must be in the order of their ticks."""
        axes = np.array(
            [(one.step, one.tick, one.attempt, one.data_position) for one in records],
            dtype=np.int64,
        ).reshape(-1, 4)
        rows_by_names: dict[tuple[str, ...], list[int]] = {}
        for row, record in enumerate(records):
            rows_by_names.setdefault(tuple(record.signals), []).append(row)
        columns: dict[str, Column] = {}
        for names, rows in rows_by_names.items():  # live runs repeat very few sets of signals
            values = np.array([tuple(records[row].signals.values()) for row in rows])
            for index, name in enumerate(names):
                column = columns.setdefault(name, Column.missing(len(records)))
                column.values[rows] = values[:, index]
                column.present[rows] = True
        step, tick, attempt, data_position = axes.T.copy()  # contiguous: they are read often
        return cls(
            step=step,
            tick=tick,
            attempt=attempt,
            data_position=data_position,
            columns=columns,
            events=tuple(events),
        )

    @classmethod
    def concat(cls, blocks: Iterable[Block]) -> Block:
        """Join blocks end to end; a signal that a block lacks is missing there."""
        parts = [block for block in blocks if len(block) or block.events]
        if not parts:
            return cls.empty()
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for block in parts for name in block.columns)
        qualities: dict[str, Quality] = {}
        for block in parts:  # a signal is trusted as far as its worst part
            for name, quality in block.qualities.items():
                qualities[name] = min(quality, qualities.get(name, Quality.RAW))
        return cls(
            step=np.concatenate([block.step for block in parts]),
            tick=np.concatenate([block.tick for block in parts]),
            attempt=np.concatenate([block.attempt for block in parts]),
            data_position=np.concatenate([block.data_position for block in parts]),
            columns={name: _join([block.column(name) for block in parts]) for name in names},
            qualities=qualities,
            events=tuple(event for block in parts for event in block.events),
        )

    def __len__(self) -> int:
        return len(self.tick)

    def __repr__(self) -> str:
        return f"<Block: {self.extent}: {listed(self.columns)}>"

    @property
    def extent(self) -> str:
        """How many records of which steps, in words: `300 records, steps 0 to 299`."""
        steps = f", steps {self.step[0]:,} to {self.step[-1]:,}" if len(self) else ""
        return f"{counted(len(self), 'record')}{steps}"

    def __getitem__(self, rows: slice) -> Block:
        """Return consecutive records; an event goes with the record after it."""
        start, stop, stride = rows.indices(len(self))
        if stride != 1:
            raise ValueError("a block can only be sliced into consecutive records (stride 1)")
        return Block(
            step=self.step[start:stop],
            tick=self.tick[start:stop],
            attempt=self.attempt[start:stop],
            data_position=self.data_position[start:stop],
            columns=_cut(self.columns, start, stop),
            qualities=self.qualities,
            events=self._events_between(start, stop),
        )

    def cut(self, size: int) -> Iterable[Block]:
        """Yield the block in pieces of at most `size` records."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def records(self, rows: IntArray | None = None) -> Iterator[Record]:
        """Yield the records one by one: those of `rows`, which must ascend, or all."""
        rows = np.arange(len(self)) if rows is None else rows
        for first in range(0, len(rows), _RECORDS_AT_ONCE):
            some = rows[first : first + _RECORDS_AT_ONCE]
            # Of columns that are on disk, only what is needed for these rows is read.
            yield from self[int(some[0]) : int(some[-1]) + 1]._make_records(some - some[0])

    def column(self, name: str) -> Column:
        """Return the column of a signal; all missing if the signal was never recorded."""
        column = self.columns.get(name)
        return Column.missing(len(self)) if column is None else column

    def quality(self, name: str) -> Quality:
        """Return how far the values of a signal can be trusted."""
        return self.qualities.get(name, Quality.RAW)

    def row_of(self, tick: int) -> int:
        """Return the row of the first record at or after a tick."""
        return int(np.searchsorted(self.tick, tick))

    def _make_records(self, rows: IntArray) -> Iterator[Record]:
        signals: list[dict[str, float]] = [{} for _ in range(len(rows))]
        # Column by column, then turned: reading single values out of numpy arrays is far slower.
        for name, column in self.columns.items():
            values, present = column.values[rows].tolist(), column.present[rows].tolist()
            for found, value, is_present in zip(signals, values, present, strict=True):
                if is_present:
                    found[name] = value
        axes = (axis[rows].tolist() for axis in (self.step, self.tick))
        others = (axis[rows].tolist() for axis in (self.attempt, self.data_position))
        return map(Record, *axes, signals, *others, repeat(self.qualities, len(rows)))

    def _events_between(self, start: int, stop: int) -> tuple[Event, ...]:
        if not self.events or start >= stop:
            return ()
        # The last piece also has the events after the last record.
        after = self.tick[start - 1] if start else np.iinfo(np.int64).min
        until = self.tick[stop - 1] if stop < len(self) else np.iinfo(np.int64).max
        return tuple(event for event in self.events if after < event.tick <= until)


def _cut(columns: Mapping[str, Column], start: int, stop: int) -> Mapping[str, Column]:
    if isinstance(columns, StoredColumns):
        return columns.cut(start, stop)
    return {name: column[start:stop] for name, column in columns.items()}


def _join(columns: Sequence[Column]) -> Column:
    values = np.concatenate([column.values for column in columns])
    # A broadcast mask has no strides: complete columns stay complete, without a mask in memory.
    if all(column.present.strides == (0,) and column.recorded for column in columns):
        return Column.complete(values)
    return Column(values, np.concatenate([column.present for column in columns]))
