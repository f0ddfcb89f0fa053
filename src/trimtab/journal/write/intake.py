"""Intake: the bounded queue between the training loop and the disk, and the count of what fell out.

The training loop puts, the writer's thread takes. Putting never waits: when the queue is full, a
record is dropped, counted, and told in the journal as soon as there is room again.
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
from trimtab.journal.write.packing import Forms

_BATCH = 1024
"""Items taken at once: enough to spare system calls, few enough to be on their way in 50 ms."""

_NOTE_RESERVE = 1024
"""Places that only notes may take: events are few, and worth more than a record."""


class Intake:
    """Gives out ticks and holds what waits for the disk."""

    def __init__(self, limit: int, next_tick: int, forms: Forms) -> None:
        self._limit = limit
        self._next_tick = next_tick
        # Not an Event: one that a signal handler sets while the same thread is setting it hangs.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._items: deque[bytes | Entry] = deque()
        self._forms = forms
        self._open = True
        self.dropped = 0
        self._untold_first = next_tick
        self._untold_records = 0
        self._untold_notes = 0
        # Reentrant, because a signal handler may note an event in the middle of a record.
        self._turn = RLock()

    def record(
        self, step: int, signals: Mapping[str, float], attempt: int, data_position: int
    ) -> int:
        """Take one record; its tick."""
        step, attempt, position = _int64(step), _int64(attempt), _int64(data_position)
        with self._turn:
            tick = self._next_tick
            form = self._forms.of_names(tuple(signals))
            packed = form.pack(step, tick, attempt, position, signals.values())
            self._next_tick += 1
            if self._open and len(self._items) < self._limit:
                self._tell_drops()
                self._items.append(packed)
                if len(self._items) == self._limit // 2:
                    self._calls.put(None)
            else:
                if not self._untold_records:
                    self._untold_first = tick
                self._untold_records += 1
                self.dropped += 1
        return tick

    def event(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        """Take one event; it stands before the next record."""
        entry = {"kind": "event", "event": kind, "step": _int64(step), "facts": facts}
        with self._turn:
            self.note(entry | {"tick": self._next_tick})

    def note(self, entry: Entry) -> None:
        """Take one note."""
        with self._turn:
            if self._open and len(self._items) < self._limit + _NOTE_RESERVE:
                self._items.append(entry)
            else:
                self._untold_notes += 1

    def end(self, how: str) -> None:
        """Take the last note; nothing is taken after it."""
        with self._turn:
            self._tell_drops()
            self._items.append({"kind": "end", "how": how})
            self._open = False
            self._calls.put(None)

    def take(self) -> list[bytes | Entry]:
        """The next items for the disk, none if nothing waits."""
        return [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]

    def rest(self, seconds: float) -> None:
        """Let the writer's thread sleep, unless so much waits that it should not."""
        if self._open and len(self._items) < min(max(self._limit // 2, 1), _BATCH):
            with suppress(Empty):
                self._calls.get(timeout=seconds)

    def is_over(self) -> bool:
        """Whether the last note has been taken from the queue, and so all before it."""
        return not self._open and not self._items

    def stop(self) -> None:
        """Take nothing any more: nobody is there to write it. What waits counts as dropped."""
        with self._turn:
            self._open = False
            self.dropped += sum(isinstance(item, bytes) for item in self._items)
            self._items.clear()

    def forget(self) -> None:
        """Stop in a forked child, where the lock may be held by a thread that was left behind."""
        self._turn = RLock()
        self.stop()

    def _tell_drops(self) -> None:
        if self._untold_records or self._untold_notes:
            self._items.append(
                {
                    "kind": "dropped",
                    "first_tick": self._untold_first,
                    "count": self._untold_records,
                    "notes": self._untold_notes,
                }
            )
            self._untold_records = self._untold_notes = 0


def _int64(value: int) -> int:
    number = index(value)  # numpy's integers too
    if not -(2**63) <= number < 2**63:
        raise JournalError(f"step, attempt and data position are 64-bit integers, got {value!r}")
    return number
