"""Thinning: which values are sent. It depends on the journal alone, not on how it was polled.

A shipper that starts again must choose the same values, or a tracker would get more of them.
"""

from dataclasses import replace

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, Column

ALWAYS = frozenset(
    {
        *(signals.LOSS, signals.GRAD_NORM, signals.LR, signals.TOKENS_PER_SECOND, signals.TOKENS),
        *(signals.DISCARDED, signals.EVAL_LOSS, signals.LOSS_SCALE, signals.CLOCK),
    }
)
"""Signals of which every value is sent."""

NEVER = frozenset({signals.FINGERPRINT, signals.RESUME_AUDIT})
"""Signals that are no quantity: a checksum and bits make no curve."""

ATTEMPT = "attempt"
NONFINITE = "nonfinite"
"""Signals that are added: the attempt of each record, and 1 in a record with a value that is not
finite. Some trackers store an infinity as 1.8e308, so it needs a mark of its own."""


class Thinning:
    """Keeps the first value of a signal in each window of ticks, and every non-finite one."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._last_window: dict[str, int] = {}
        self._last_clock = 0.0

    def update(self, block: Block) -> Block:
        """What is sent of a block; blocks come in order, from the first record on."""
        columns = {name: self._thin(name, block) for name in block.columns if name not in NEVER}
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
        """The clock of every record; one without a clock has that of the record before."""
        column = block.column(signals.CLOCK)
        known = np.flatnonzero(column.finite)
        clocks = np.concatenate([[self._last_clock], column.values[known]])
        filled = clocks[np.searchsorted(known, np.arange(len(block)), side="right")]
        if len(filled):
            self._last_clock = float(filled[-1])
        return Column.complete(filled)
