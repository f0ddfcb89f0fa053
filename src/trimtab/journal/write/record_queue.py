"""RecordQueue: the bounded queue between the training loop and the disk.

The training loop puts, the writer's thread pops. Putting never waits: when the queue is full, a
record is dropped and counted, and an entry in the journal reports it as soon as there is room.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from operator import index
from queue import Empty, SimpleQueue
from threading import RLock
from typing import Any

from trimtab.core.errors import JournalError
from trimtab.journal.format.lines import Entry
from trimtab.journal.write.record_layouts import RecordLayouts

_BATCH = 1024
"""Items popped at once: enough to save system calls, few enough to be written within 50 ms."""

_ENTRY_RESERVE = 1024
"""Room for entries other than records: events are few, and worth more than a record."""


class RecordQueue:
    """Assigns ticks and holds what waits for the disk."""

    def __init__(self, limit: int, next_tick: int, layouts: RecordLayouts) -> None:
        self._limit = limit
        self._next_tick = next_tick
        # Not an Event: it deadlocks if a signal handler sets it while its thread is setting it.
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._items: deque[bytes | Entry] = deque()
        self._layouts = layouts
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
            packed = layout.pack(step, tick, attempt, position, signals.values())
            self._next_tick += 1
            if self._open and len(self._items) < self._limit:
                self._report_drops()
                self._items.append(packed)
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
        """Put one entry that is not a record."""
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

    def pop(self) -> list[bytes | Entry]:
        """The next items for the disk, none if nothing waits."""
        return [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]

    def wait(self, seconds: float) -> None:
        """Put the writer's thread to sleep, unless too much is waiting already."""
        if self._open and len(self._items) < min(max(self._limit // 2, 1), _BATCH):
            with suppress(Empty):
                self._wakeups.get(timeout=seconds)

    def is_finished(self) -> bool:
        """Whether the last entry has been popped, and so everything before it."""
        return not self._open and not self._items

    def stop(self) -> None:
        """Accept nothing more, because no thread will write it. What waits counts as dropped."""
        with self._lock:
            self._open = False
            self.dropped += sum(isinstance(item, bytes) for item in self._items)
            self._items.clear()

    def stop_in_child(self) -> None:
        """Stop in a forked child, where a thread that does not exist there may hold the lock."""
        self._lock = RLock()
        self.stop()

    def _report_drops(self) -> None:
        if self._unreported_records or self._unreported_entries:
            self._items.append(
                {
                    "kind": "dropped",
                    "first_tick": self._unreported_first,
                    "count": self._unreported_records,
                    "notes": self._unreported_entries,
                }
            )
            self._unreported_records = self._unreported_entries = 0


def _int64(value: int) -> int:
    number = index(value)  # numpy's integers too
    if not -(2**63) <= number < 2**63:
        raise JournalError(f"step, attempt and data position are 64-bit integers, got {value!r}")
    return number
