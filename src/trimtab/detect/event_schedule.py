"""EventSchedule: what is known to have happened before each record, so that no detector reports it.

Most of it comes as events in the journal. Two things show in the records themselves: an attempt
that counts up (the run went back), and a number of tokens that was constant for long and now
differs (the batch size or sequence length was changed).
"""

from collections.abc import Iterable

import numpy as np

from trimtab.core.block import Block, Event
from trimtab.core.detector import KnownChange, Row
from trimtab.core.signals import TOKENS
from trimtab.core.state import Stateful

MIN_SETTLED = 32
"""Records with the same number of tokens after which a different number is a change. Where the
number differs from batch to batch, this is never reached."""

CHANGES = {
    "resume": KnownChange.RESUMED,
    "planned change": KnownChange.CHANGED,
    "evaluation": KnownChange.PAUSED,
    "checkpoint": KnownChange.PAUSED,
}
"""By the kind of event in the journal."""

_NEAR = 64
"""Records within which an event nearly always finds its step: these are searched first."""


class EventSchedule(Stateful):
    """Returns what happened before each record."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, str]] = []
        """Tick, step and kind of events whose record has not come yet. A live run writes its
        records some steps late and its events at once, so the step decides."""
        self._attempt: int | None = None
        self._tokens = 0.0
        self._num_same = 0
        """Records in a row with that number of tokens."""

    def add(self, events: Iterable[Event]) -> None:
        """Add the events that came with a block."""
        for event in events:
            if event.kind in CHANGES:
                self._pending.append((event.tick, event.step, event.kind))

    def update(self, row: Row) -> KnownChange:
        """What happened before a record."""
        change = KnownChange.NOTHING
        if self._pending:
            change = self._pop_due(row.tick, row.step)
        if row.attempt != self._attempt:
            if self._attempt is not None:
                change |= KnownChange.WENT_BACK
            self._attempt = row.attempt
        tokens = row.signals.get(TOKENS)
        if tokens is not None:
            if tokens == self._tokens:
                self._num_same += 1
            else:
                if self._num_same >= MIN_SETTLED:
                    change |= KnownChange.CHANGED
                self._tokens, self._num_same = tokens, 1
        return change

    def update_many(self, block: Block) -> list[tuple[int, KnownChange]]:
        """What happened before each of many records, by row; rows without a change are left out."""
        changes: dict[int, KnownChange] = {}

        def add(row: int, change: KnownChange) -> None:
            changes[row] = changes.get(row, KnownChange.NOTHING) | change

        for row in self._due_rows(block):
            add(row, self._pop_due(int(block.tick[row]), int(block.step[row])))
        first = block.attempt[0] if self._attempt is None else self._attempt
        for row in np.flatnonzero(np.diff(block.attempt, prepend=first)).tolist():
            add(row, KnownChange.WENT_BACK)
        self._attempt = int(block.attempt[-1])
        for row in self._token_changes(block):
            add(row, KnownChange.CHANGED)
        return sorted(changes.items())

    def _pop_due(self, tick: int, step: int) -> KnownChange:
        change = KnownChange.NOTHING
        waiting = []
        for event in self._pending:
            if event[0] <= tick and event[1] <= step:
                change |= CHANGES[event[2]]
            else:
                waiting.append(event)
        self._pending = waiting
        return change

    def _due_rows(self, block: Block) -> list[int]:
        """The rows before which an event falls due, in order."""
        rows = set()
        for tick, step, _ in self._pending:
            first = block.row_of(tick)
            for last in (first + _NEAR, len(block)):
                reached = np.flatnonzero(block.step[first:last] >= step)
                if len(reached):
                    rows.add(first + int(reached[0]))
                    break
        return sorted(rows)

    def _token_changes(self, block: Block) -> list[int]:
        column = block.columns.get(TOKENS)
        rows = np.flatnonzero(column.present) if column is not None else np.empty(0, dtype=np.int64)
        if column is None or not len(rows):
            return []
        values = column.values[rows]
        differs = np.flatnonzero(values != np.concatenate(([self._tokens], values[:-1])))
        if not len(differs):
            self._num_same += len(rows)
            return []
        lengths = np.diff(np.concatenate(([-self._num_same], differs)))
        self._tokens, self._num_same = float(values[-1]), len(values) - int(differs[-1])
        changed: list[int] = rows[differs[lengths >= MIN_SETTLED]].tolist()
        return changed
