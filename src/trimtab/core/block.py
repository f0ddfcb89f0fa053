"""Block: consecutive records as columns. Readers and journals make blocks, detectors read them.

Per record: step, tick, attempt, data position. Per signal: one float64 column and one mask.
NaN, +inf, -inf and missing are four different things: the first three are recorded values (mask
true), the last is not (mask false).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trimtab.core.records.column import BoolArray, Column, FloatArray, IntArray
from trimtab.core.records.stored_columns import StoredColumns
from trimtab.core.signals import Quality

__all__ = ["NO_POSITION", "Block", "BoolArray", "Column", "Event", "FloatArray", "IntArray"]

NO_POSITION = -1
"""The data position of a record whose batch is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something known that happened between two records."""

    kind: str
    tick: int
    """The tick of the next record."""
    step: int
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive records as columns, with the events between them."""

    step: IntArray
    tick: IntArray
    attempt: IntArray
    data_position: IntArray
    columns: Mapping[str, Column]
    qualities: Mapping[str, Quality] = field(default_factory=dict)
    """Only those worse than raw."""
    events: Sequence[Event] = ()

    def __post_init__(self) -> None:
        length = len(self.tick)
        axes = {"step": self.step, "attempt": self.attempt, "data_position": self.data_position}
        for name, axis in axes.items():
            if len(axis) != length:
                raise ValueError(f"{name} has {len(axis)} entries, tick has {length}")
        if isinstance(self.columns, StoredColumns):
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
        """A block without records."""
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
        """A block from its columns; what is not given defaults to a run without restarts."""
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
    def concat(cls, blocks: Iterable[Block]) -> Block:
        """The blocks one after the other; a signal that a block lacks is missing there."""
        parts = [block for block in blocks if len(block) or block.events]
        if not parts:
            return cls.empty()
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for block in parts for name in block.columns)
        qualities: dict[str, Quality] = {}
        for block in parts:
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

    def __getitem__(self, rows: slice) -> Block:
        """Consecutive records; an event goes with the record after it."""
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
        """The block in pieces of at most `size` records."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def column(self, name: str) -> Column:
        """The column of a signal; all missing if the signal was never recorded."""
        column = self.columns.get(name)
        return Column.missing(len(self)) if column is None else column

    def quality(self, name: str) -> Quality:
        """How far the values of a signal can be trusted."""
        return self.qualities.get(name, Quality.RAW)

    def row_of(self, tick: int) -> int:
        """The row of the first record at or after a tick."""
        return int(np.searchsorted(self.tick, tick))

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
    if all(column.present.strides == (0,) and column.recorded for column in columns):
        return Column.complete(values)
    return Column(values, np.concatenate([column.present for column in columns]))
