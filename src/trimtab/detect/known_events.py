"""Calendar: what whoever runs the job knew of, so that no detector takes it for a fault.

Most of it is told by events in the journal. Two things show in the records themselves: an attempt
that counts up (the run went back), and a number of tokens that was the same for long and is now
another (the batch or its length was changed).
"""

from collections.abc import Iterable
from enum import Flag, auto
from typing import Any

import numpy as np

from trimtab.core.block import Block, Event
from trimtab.core.signals import TOKENS
from trimtab.detect.tools.rows import Row

SETTLED = 32
"""Records with one and the same number of tokens after which another number is a change. Where
every batch has its own number of tokens, this never comes about."""

_NEAR = 64
"""Records within which an event nearly always finds its step: looked at first."""


class Known(Flag):
    """What happened between two records."""

    NOTHING = 0
    RESUMED = auto()
    """Another process goes on where the last one stopped."""
    WENT_BACK = auto()
    """A new attempt: steps are made a second time."""
    CHANGED = auto()
    """A planned change, or a batch of another size: the past is no measure any more."""
    PAUSED = auto()
    """An evaluation or a checkpoint: the clock ran, the training did not."""


KINDS = {
    "resume": Known.RESUMED,
    "planned change": Known.CHANGED,
    "evaluation": Known.PAUSED,
    "checkpoint": Known.PAUSED,
}
"""Events by their kind in the journal."""


class Calendar:
    """Says in front of each record what is known to have happened."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, Known]] = []
        """Tick, step and meaning of events whose record has not come yet. A live run writes
        its records some steps late and its events at once, so the step decides."""
        self._attempt: int | None = None
        self._tokens = 0.0
        self._same = 0
        """How many records in a row had that number of tokens."""

    def announce(self, events: Iterable[Event]) -> None:
        """Take events that came with a block."""
        for event in events:
            known = KINDS.get(event.kind)
            if known is not None:
                self._pending.append((event.tick, event.step, known))

    def take(self, row: Row) -> Known:
        """What happened in front of a record."""
        known = Known.NOTHING
        if self._pending:
            known = self._due(row.tick, row.step)
        if row.attempt != self._attempt:
            if self._attempt is not None:
                known |= Known.WENT_BACK
            self._attempt = row.attempt
        tokens = row.signals.get(TOKENS)
        if tokens is not None:
            if tokens == self._tokens:
                self._same += 1
            else:
                if self._same >= SETTLED:
                    known |= Known.CHANGED
                self._tokens, self._same = tokens, 1
        return known

    def sweep(self, block: Block) -> list[tuple[int, Known]]:
        """What happened in front of each of many records, by row; quiet ones are left out."""
        found: dict[int, Known] = {}

        def add(row: int, known: Known) -> None:
            found[row] = found.get(row, Known.NOTHING) | known

        for row in self._due_rows(block):
            add(row, self._due(int(block.tick[row]), int(block.step[row])))
        first = block.attempt[0] if self._attempt is None else self._attempt
        for row in np.flatnonzero(np.diff(block.attempt, prepend=first)).tolist():
            add(row, Known.WENT_BACK)
        self._attempt = int(block.attempt[-1])
        for row in self._sweep_tokens(block):
            add(row, Known.CHANGED)
        return sorted(found.items())

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "pending": [[tick, step, known.value] for tick, step, known in self._pending],
            "attempt": self._attempt,
            "tokens": [self._tokens, self._same],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the calendar that `state_dict` described."""
        self._pending = [(tick, step, Known(value)) for tick, step, value in state["pending"]]
        self._attempt = state["attempt"]
        self._tokens, self._same = state["tokens"]

    def _due(self, tick: int, step: int) -> Known:
        known = Known.NOTHING
        waiting = []
        for entry in self._pending:
            if entry[0] <= tick and entry[1] <= step:
                known |= entry[2]
            else:
                waiting.append(entry)
        self._pending = waiting
        return known

    def _due_rows(self, block: Block) -> list[int]:
        """The rows in front of which an event falls due, in order."""
        rows = set()
        for tick, step, _ in self._pending:
            first = block.row_of(tick)
            for last in (first + _NEAR, len(block)):
                reached = np.flatnonzero(block.step[first:last] >= step)
                if len(reached):
                    rows.add(first + int(reached[0]))
                    break
        return sorted(rows)

    def _sweep_tokens(self, block: Block) -> list[int]:
        column = block.columns.get(TOKENS)
        rows = np.flatnonzero(column.present) if column is not None else np.empty(0, dtype=np.int64)
        if column is None or not len(rows):
            return []
        values = column.values[rows]
        others = np.flatnonzero(values != np.concatenate(([self._tokens], values[:-1])))
        if not len(others):
            self._same += len(rows)
            return []
        runs = np.diff(np.concatenate(([-self._same], others)))
        self._tokens, self._same = float(values[-1]), len(values) - int(others[-1])
        changed: list[int] = rows[others[runs >= SETTLED]].tolist()
        return changed
