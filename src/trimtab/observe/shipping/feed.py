"""Feed: the records, events and news that one sink has not had yet, in order.

Which values are sent (`Thinning`) depends on the journal alone, not on how it was polled: a shipper
that starts again must choose the same ones, or a tracker would get more of them.
"""

from dataclasses import replace

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, Column, Event
from trimtab.journal import RunDirectory
from trimtab.observe.run_stream import RunStream
from trimtab.observe.shipping.cursor import Cursor

BATCH_POINTS, BATCH_RECORDS = 1000, 500
"""Points and records in one `send`; the position is saved after each. Source: MLflow takes 1,000
points in a request."""

PIECE_RECORDS = 16384
"""Records that are read before they are sent: one file of a journal. A run that is sent for the
first time after months would not fit into memory as a whole."""

ALWAYS = frozenset(
    {
        *(signals.LOSS, signals.GRAD_NORM, signals.LR, signals.TOKENS_PER_SECOND, signals.TOKENS),
        *(signals.DISCARDED, signals.EVAL_LOSS, signals.LOSS_SCALE, signals.CLOCK),
    }
)
"""Signals of which every value is sent."""

ATTEMPT = "attempt"

NONFINITE = "nonfinite"
"""Signals that are added: the attempt of each record, and 1 in a record with a value that is not
finite. Some trackers store an infinity as 1.8e308, so it needs a mark of its own."""


class Feed:
    """Follows the journal from its first record and hands out what comes after the cursor."""

    def __init__(self, run: RunDirectory, cursor: Cursor, every: int, *, everything: bool) -> None:
        self.stream = RunStream(run)
        self._thinning = Thinning(every)
        self._next_tick = 0 if everything else cursor.next_tick
        self._skip_events = 0 if everything else cursor.num_events
        self._skip_news = 0 if everything else cursor.num_news
        self._pending = self._batch = Block.empty()
        self._news: list[Event] = []
        """What the observer said; sent after the records that it is about."""
        self._num_news = 0
        """Events of the batch that are news."""
        self._is_whole = everything

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._batch)

    def poll(self) -> None:
        """Read what is new: all of it, or the next piece (`has_more`) once that before is sent."""
        if self.stream.has_more and self.waiting:
            return
        block, news = self.stream.read(PIECE_RECORDS)
        skipped = min(self._skip_news, len(news))
        self._skip_news -= skipped
        self._news += news[skipped:]
        new = self._after_cursor(self._thinning.update(block))
        if len(new) or new.events:
            self._pending = Block.concat([self._pending, new])

    def batch(self) -> Block:
        """Return the next records and events to send; the same ones until `sent` is called."""
        if not len(self._batch) and not self._batch.events:
            self._batch = self._cut()
        return self._batch

    def sent(self, cursor: Cursor) -> None:
        """Move the cursor past the batch."""
        cursor.advance(self._batch, self._num_news)
        self._batch, self._num_news = Block.empty(), 0

    def close(self) -> None:
        self.stream.close()

    def _cut(self) -> Block:
        """Remove and return the next batch: one event, or records up to the next event.

        A send that needs several requests may never get through where most replies are lost.
        """
        whole, events = self._pending, self._pending.events
        if self._is_whole:
            self._pending, news, self._news = Block.empty(), self._news, []
            self._num_news = len(news)
            return replace(whole, events=(*events, *news))
        if self._news and not len(whole) and not events:
            first, *self._news = self._news
            self._num_news = 1
            return replace(Block.empty(), events=(first,))
        # An event comes before the record of its tick, as in the journal.
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
        # At least one record, even if it alone has more points than a request may have.
        return max(int(np.searchsorted(points.cumsum(), BATCH_POINTS, side="right")), 1)

    def _after_cursor(self, block: Block) -> Block:
        events = [event for event in block.events if event.tick >= self._next_tick]
        skipped = min(self._skip_events, len(events))
        self._skip_events -= skipped
        rows = block.row_of(self._next_tick)
        return replace(block[rows:] if rows else block, events=tuple(events[skipped:]))


class Thinning:
    """Keeps the first value of a signal in each window of ticks, and every non-finite one."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._last_window: dict[str, int] = {}
        self._last_clock = 0.0

    def update(self, block: Block) -> Block:
        """Return what is sent of a block; blocks come in order, from the first record on."""
        columns = {
            name: self._thin(name, block) for name in block.columns if name not in signals.NO_CURVES
        }
        columns[signals.CLOCK] = self._fill_clock(block)
        columns[ATTEMPT] = Column.complete(block.attempt.astype(np.float64))
        odd = np.zeros(len(block), dtype=np.bool_)
        for column in block.columns.values():
            odd |= column.nonfinite
        if odd.any():
            columns[NONFINITE] = Column(np.where(odd, 1.0, np.nan), odd)
        return replace(block, columns=columns)

    def _thin(self, name: str, block: Block) -> Column:
        column = block.column(name)
        if name in ALWAYS or self._every == 1:
            return column
        rows = np.flatnonzero(column.present)
        windows = block.tick[rows] // self._every
        before = np.concatenate([[self._last_window.get(name, -1)], windows[:-1]])
        if len(rows):
            self._last_window[name] = int(windows[-1])
        kept = np.zeros(len(block), dtype=np.bool_)
        kept[rows[windows > before]] = True
        return Column(column.values, kept | column.nonfinite)

    def _fill_clock(self, block: Block) -> Column:
        """Return the clock of every record; one without a clock has that of the record before."""
        column = block.column(signals.CLOCK)
        known = np.flatnonzero(column.finite)
        clocks = np.concatenate([[self._last_clock], column.values[known]])
        filled = clocks[np.searchsorted(known, np.arange(len(block)), side="right")]
        if len(filled):
            self._last_clock = float(filled[-1])
        return Column.complete(filled)
