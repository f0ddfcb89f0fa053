"""Feed: the records and events that one sink has not had yet, in order."""

from dataclasses import replace

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.integrations.shipper.cursor import Cursor
from trimtab.integrations.shipper.thinning import Thinning
from trimtab.journal import Follower, RunDirectory

BATCH_POINTS, BATCH_RECORDS = 1000, 500
"""Points and records in one `send`; the position is saved after each. Source: MLflow takes 1,000
points in a request."""

PIECE_RECORDS = 16384
"""Records that are read before they are sent: one file of a journal. A run that is sent for the
first time after months would not fit into memory as a whole."""


class Feed:
    """Follows the journal from its first record and hands out what comes after the cursor."""

    def __init__(self, run: RunDirectory, cursor: Cursor, every: int, *, everything: bool) -> None:
        self._follower = Follower(run)
        self._thinning = Thinning(every)
        self._next_tick = 0 if everything else cursor.next_tick
        self._skip_events = 0 if everything else cursor.num_events
        self._pending = self._batch = Block.empty()
        self._is_whole = everything
        self.last_clock: float | None = None
        """The clock of the last record in the journal."""
        self.incidents: set[int] = set()
        """The numbers of all incidents in the journal."""
        self.last_step = 0
        """The step of the last record in the journal."""

    @property
    def ended(self) -> str | None:
        """How the writer of the journal ended; None while it runs or if it was killed."""
        return None if self.has_more else self._follower.ended

    @property
    def has_more(self) -> bool:
        """Whether the journal goes on after what was read."""
        return self._follower.has_more

    @property
    def waiting(self) -> int:
        """Records that were read and wait to be sent."""
        return len(self._pending) + len(self._batch)

    def poll(self) -> None:
        """Read what is new: all of it, or the next piece (`has_more`) once that before is sent."""
        if self.has_more and self.waiting:
            return
        block = self._thinning.update(self._follower.poll(PIECE_RECORDS))
        if len(block):
            clock = float(block.column(signals.CLOCK).values[-1])
            self.last_clock = clock or None
            self.last_step = int(block.step[-1])
        for event in block.events:
            if event.kind == "incident" and type(event.facts.get("number")) is int:
                self.incidents.add(event.facts["number"])
        new = self._after_cursor(block)
        if len(new) or new.events:
            self._pending = Block.concat([self._pending, new])

    def batch(self) -> Block:
        """The next records and events to send; the same ones until `sent` is called."""
        if not len(self._batch) and not self._batch.events:
            self._batch = self._cut()
        return self._batch

    def sent(self) -> None:
        """The batch was sent."""
        self._batch = Block.empty()

    def close(self) -> None:
        """Close the journal."""
        self._follower.close()

    def _cut(self) -> Block:
        """Take the next batch: one event, or records up to the next event.

        A send that needs several requests may never get through where most replies are lost.
        """
        whole, events = self._pending, self._pending.events
        if self._is_whole:
            self._pending = Block.empty()
            return whole
        if events and (not len(whole) or events[0].tick <= whole.tick[0]):
            self._pending = replace(whole, events=events[1:])
            return replace(Block.empty(), events=events[:1])
        rows = self._rows_in_batch(whole)
        if events:
            rows = min(rows, whole.row_of(events[0].tick))
        self._pending = replace(whole[rows:], events=events)
        return replace(whole[:rows], events=())

    def _rows_in_batch(self, waiting: Block) -> int:
        first = waiting[:BATCH_RECORDS]
        points = np.zeros(len(first), dtype=np.int64)
        for name, column in first.columns.items():
            if name != signals.CLOCK:
                points += column.present
        return max(int(np.searchsorted(points.cumsum(), BATCH_POINTS, side="right")), 1)

    def _after_cursor(self, block: Block) -> Block:
        events = [event for event in block.events if event.tick >= self._next_tick]
        skipped = min(self._skip_events, len(events))
        self._skip_events -= skipped
        rows = block.row_of(self._next_tick)
        return replace(block[rows:] if rows else block, events=tuple(events[skipped:]))
