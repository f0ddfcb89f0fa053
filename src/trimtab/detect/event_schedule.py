"""EventSchedule: what is known to have happened before each record, so that no detector reports it.

Most of it comes as events in the journal. Two things show in the records themselves: an attempt
that counts up (the run went back), and a number of tokens that was constant for long and now
differs. The first records that differ are odd batches, each alone not comparable (the last batch of
an epoch is short); when enough of them came in a row, the batch size or the sequence length was
changed.
"""

from collections.abc import Iterable

import numpy as np

from trimtab.core.block import Block, Event, FloatArray, Record
from trimtab.core.detector import KnownChange
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.core.signals import TOKENS
from trimtab.core.state import Stateful

MIN_SETTLED = 32
"""Records with the same number of tokens after which a different number is odd. Where the number
differs from batch to batch, this is never reached."""

MIN_LASTING = 4
"""Records in a row with a different number of tokens after which it has changed for good. Chosen:
an epoch ends with one short batch, or with one per data source; ramps stay longer on each size."""

CHANGES = {
    "resume": KnownChange.RESUMED,
    "planned change": KnownChange.CHANGED,
    "evaluation": KnownChange.PAUSED,
    "checkpoint": KnownChange.PAUSED,
    ROLLBACK: KnownChange.SKIPPED_DATA,
}
"""By the kind of event in the journal."""

_NEAR = 64
"""Records within which an event nearly always finds its step: these are searched first."""


_AT_ONCE = 4096
"""Numbers of tokens that are compared at once."""


class EventSchedule(Stateful):
    """Returns what happened before each record."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, str]] = []
        """Tick, step and kind of events whose record has not come yet. A live run writes its
        records some steps late and its events at once, so the step decides."""
        self._attempt: int | None = None
        self._continues = False
        """Whether the next attempt continues what is known: a rollback with a rewound judge."""
        self._tokens = 0.0
        self._num_same = 0
        """Records with that number of tokens, not counting odd batches between them."""
        self._num_odd = 0
        """Records in a row with a different number, once it was settled."""

    def add(self, events: Iterable[Event]) -> None:
        """Add the events that came with a block."""
        for event in events:
            is_rollback = event.kind == ROLLBACK
            self._continues = self._continues or is_rollback
            if event.kind in CHANGES and (event.facts.get("skip") or not is_rollback):
                self._pending.append((event.tick, event.step, event.kind))

    def update(self, record: Record) -> KnownChange:
        """What happened before a record."""
        change = KnownChange.NOTHING
        if self._pending:
            change = self._pop_due(record.tick, record.step)
        if record.attempt != self._attempt:
            if self._attempt is not None and not self._continues:
                change |= KnownChange.WENT_BACK
            self._attempt, self._continues = record.attempt, False
        tokens = record.signals.get(TOKENS)
        if tokens is not None:
            change |= self._judge_tokens(tokens)
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
            if not self._continues:
                add(row, KnownChange.WENT_BACK)
            self._continues = False
        self._attempt = int(block.attempt[-1])
        for row, change in self._token_changes(block):
            add(row, change)
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

    def _judge_tokens(self, tokens: float) -> KnownChange:
        """Judge the number of tokens of a record."""
        if tokens == self._tokens:
            self._num_same, self._num_odd = self._num_same + 1, 0
            return KnownChange.NOTHING
        if self._num_same >= MIN_SETTLED:
            self._num_odd += 1
            if self._num_odd < MIN_LASTING:
                return KnownChange.ODD_BATCH
            change = KnownChange.CHANGED
        else:
            change = KnownChange.NOTHING
        self._tokens, self._num_same, self._num_odd = tokens, 1, 0
        return change

    def _token_changes(self, block: Block) -> list[tuple[int, KnownChange]]:
        column = block.columns.get(TOKENS)
        rows = np.flatnonzero(column.present) if column is not None else np.empty(0, dtype=np.int64)
        if column is None or not len(rows):
            return []
        values = column.values[rows]
        changes = []
        at = 0
        while at < len(values):
            same = _num_equal(values[at:], self._tokens)
            if same:  # nearly always all of them
                self._num_same, self._num_odd = self._num_same + same, 0
                at += same
            else:
                change = self._judge_tokens(float(values[at]))
                if change:
                    changes.append((int(rows[at]), change))
                at += 1
        return changes


def _num_equal(values: FloatArray, value: float) -> int:
    """How many values from the first on are equal to one; looks at few of them at a time."""
    if values[0] != value:
        return 0
    count = 0
    while count < len(values):
        differs = values[count : count + _AT_ONCE] != value
        if differs.any():
            return count + int(np.argmax(differs))
        count += len(differs)
    return count
