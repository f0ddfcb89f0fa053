"""RecordQueue: the bounded queue between the training loop and the disk, and records as bytes.

The training loop appends, the writer's thread pops. Appending never waits: when the queue is full,
a record is dropped and counted, and an entry in the journal reports it as soon as there is room.

From `append` until it is sealed, a record is a byte string: a full queue takes a few MB, and
columns are cut out of the bytes without touching a number twice.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from operator import index
from queue import Empty, SimpleQueue
from struct import Struct
from struct import error as StructError
from threading import RLock
from typing import Any

import numpy as np

from trimtab.core.block import Block, Column, IntArray
from trimtab.core.errors import JournalError
from trimtab.journal.lines import Entry, encode_line, frame_line

_AXES = ("step", "tick", "attempt", "position")


class RecordLayout:
    """How records with one set of signals are packed; a run repeats few sets."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(map(str, names))
        self._struct = Struct(f"={len(_AXES)}q{len(self.names)}d")
        self._num_lines = 0
        self._text = ""
        axes = [(axis, np.int64) for axis in _AXES]
        self.dtype = np.dtype([*axes, ("values", np.float64, (len(self.names),))])

    def pack(
        self, step: int, tick: int, attempt: int, position: int, values: Iterable[float]
    ) -> bytes:
        """Pack one record; raises TypeError if a value is not a number."""
        try:
            return self._struct.pack(step, tick, attempt, position, *values)
        except StructError as error:
            raise TypeError(f"signals are numbers: {error}") from error

    def line(self, packed: bytes) -> bytes:
        step, tick, attempt, position, *values = self._struct.unpack(packed)
        self._num_lines += 1
        if self._num_lines > 1 and isfinite(sum(values)):
            # The same text as below, in two thirds of the time; a set of signals that comes once
            # is not worth a template.
            self._text = self._text or _text(self.names)
            return frame_line(self._text % (step, tick, attempt, position, *values))
        entry = {"kind": "record", "step": step, "tick": tick, "attempt": attempt}
        signals = dict(zip(self.names, values, strict=True))
        return encode_line(entry | {"position": position, "signals": signals})


Packed = tuple[RecordLayout, bytes]
"""A record, and what unpacks it."""

_MAX_LAYOUTS = 64
"""Layouts that are kept. Chosen: a run has a few; where layers are dropped at random, nearly every
record with telemetry has a set of signals of its own."""


class RecordLayouts:
    """The layouts that one writer has used last."""

    def __init__(self) -> None:
        self._by_names: dict[tuple[str, ...], RecordLayout] = {}
        self._names: dict[str, str] = {}

    def for_names(self, names: tuple[str, ...]) -> RecordLayout:
        layout = self._by_names.pop(names, None)
        if layout is None:
            # One copy of each name: they are often made anew for each record.
            layout = RecordLayout(self._names.setdefault(name, name) for name in names)
            if len(self._by_names) >= _MAX_LAYOUTS:
                del self._by_names[next(iter(self._by_names))]
        self._by_names[layout.names] = layout  # last in order: the one that was used last
        return layout


class PackedRows:
    """The records of one segment, turned into columns when it is sealed."""

    def __init__(self) -> None:
        self._rows: dict[RecordLayout, bytearray] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, layout: RecordLayout, packed: bytes) -> None:
        rows = self._rows.get(layout)
        if rows is None:
            rows = self._rows[layout] = bytearray()
        rows += packed
        self._length += 1

    def block(self) -> Block:
        """Build a block of all records by rising tick."""
        tables = {
            layout: np.frombuffer(rows, dtype=layout.dtype) for layout, rows in self._rows.items()
        }
        axes = {axis: _joined([table[axis] for table in tables.values()]) for axis in _AXES}
        order = np.argsort(axes["tick"])
        row_of = np.empty_like(order)
        row_of[order] = np.arange(len(self))
        columns: dict[str, Column] = {}
        start = 0
        for layout, table in tables.items():
            rows, start = row_of[start : start + len(table)], start + len(table)
            for number, name in enumerate(layout.names):
                column = columns.setdefault(name, Column.missing(len(self)))
                column.values[rows] = table["values"][:, number]
                column.present[rows] = True
        return Block(
            step=axes["step"][order],
            tick=axes["tick"][order],
            attempt=axes["attempt"][order],
            data_position=axes["position"][order],
            columns=columns,
        )


def _text(names: tuple[str, ...]) -> str:
    """Return a %-template of the JSON line; %r of a float is what the JSON encoder writes."""
    signals = ",".join(json.dumps(name).replace("%", "%%") + ":%r" for name in names)
    axes = '"kind":"record","step":%d,"tick":%d,"attempt":%d,"position":%d'
    return "{" + axes + ',"signals":{' + signals + "}}"


def _joined(arrays: list[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)


_BATCH = 1024
"""Items popped at once: enough to save system calls, few enough to be written within 50 ms."""

_ENTRY_RESERVE = 1024
"""Room for entries other than records: events are few, and worth more than a record."""


class RecordQueue:
    """Assigns ticks and holds what waits for the disk."""

    def __init__(self, limit: int, next_tick: int) -> None:
        self._limit = limit
        self._next_tick = next_tick
        # Not an Event: it deadlocks if a signal handler sets it while its thread is setting it.
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._items: deque[Packed | Entry] = deque()
        self._layouts = RecordLayouts()
        self._open = True
        self.dropped = 0
        self._unreported_first = next_tick
        self._unreported_records = 0
        self._unreported_entries = 0
        # Reentrant, because a signal handler may put an event in the middle of a record.
        self._lock = RLock()

    def put_record(
        self, step: int, signals: Mapping[str, float], attempt: int, data_position: int
    ) -> int:
        """Put one record; returns its tick."""
        step, attempt, position = _int64(step), _int64(attempt), _int64(data_position)
        with self._lock:
            tick = self._next_tick
            layout = self._layouts.for_names(tuple(signals))
            # Before the tick is counted: a value that is no number raises here and leaves no gap.
            packed = layout.pack(step, tick, attempt, position, signals.values())
            self._next_tick += 1
            if self._open and len(self._items) < self._limit:
                self._report_drops()
                self._items.append((layout, packed))
                # Half full: the writer must not sleep until its next flush.
                if len(self._items) == self._limit // 2:
                    self._wakeups.put(None)
            else:
                if not self._unreported_records:
                    self._unreported_first = tick
                self._unreported_records += 1
                self.dropped += 1
        return tick

    def put_event(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        """Put one event, before the next record."""
        entry = {"kind": "event", "event": kind, "step": _int64(step), "facts": facts}
        with self._lock:
            self.put_entry(entry | {"tick": self._next_tick})

    def put_entry(self, entry: Entry) -> None:
        with self._lock:
            if self._open and len(self._items) < self._limit + _ENTRY_RESERVE:
                self._items.append(entry)
            else:
                self._unreported_entries += 1

    def put_end(self, how: str) -> None:
        """Put the last entry; nothing is accepted after it."""
        with self._lock:
            self._report_drops()
            self._items.append({"kind": "end", "how": how})
            self._open = False
            self._wakeups.put(None)

    def pop(self) -> list[Packed | Entry]:
        """Remove and return the next items for the disk; empty if nothing waits."""
        # Without the lock, which the training loop may need: a deque pops atomically, and only the
        # writer's thread pops.
        return [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]

    def wait(self, seconds: float) -> None:
        """Put the writer's thread to sleep, unless too much is waiting already."""
        if self._open and len(self._items) < min(max(self._limit // 2, 1), _BATCH):
            with suppress(Empty):
                self._wakeups.get(timeout=seconds)

    def is_finished(self) -> bool:
        """Return whether the last entry has been popped, and so everything before it."""
        return not self._open and not self._items

    def stop(self) -> None:
        """Accept nothing more, because no thread will write it. What waits counts as dropped."""
        with self._lock:
            self._open = False
            self.dropped += sum(isinstance(item, tuple) for item in self._items)
            self._items.clear()

    def stop_in_child(self) -> None:
        """Stop in a forked child, where a thread that does not exist there may hold the lock."""
        self._lock = RLock()
        self.stop()

    def _report_drops(self) -> None:
        if self._unreported_records or self._unreported_entries:
            entry: Entry = {"kind": "dropped", "first_tick": self._unreported_first}
            entry |= {"count": self._unreported_records, "notes": self._unreported_entries}
            self._items.append(entry)
            self._unreported_records = self._unreported_entries = 0


def _int64(value: int) -> int:
    number = index(value)  # numpy's integers too
    if not -(2**63) <= number < 2**63:
        raise JournalError(f"step, attempt and data position are 64-bit integers, got {value!r}")
    return number
