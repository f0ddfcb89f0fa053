"""RunTotals: what a run adds up to as its journal grows, and whether it is still alive.

Whoever follows a journal keeps one: the terminal, the pages, the shipper.
"""

from typing import Any

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.sink import RunStatus
from trimtab.journal.news import INCIDENT

STALL_SECONDS = 120.0
"""A run without a record for longer counts as stalled for whoever looks at it. Source: evaluations
and checkpoints of small runs take up to a minute. Alerts wait longer (`ship.stall_seconds`)."""

STALL_STEPS = 10.0
"""A run is stalled only if it was silent for as many of its own steps too."""

_MAY_BE_ODD = (signals.LOSS, signals.GRAD_NORM, signals.LR, signals.UPDATE_NORM, signals.PARAM_NORM)
"""Signals whose latest value is of interest even if it is NaN."""
_FINITE = (signals.CLOCK, signals.STEP_SECONDS, signals.TOKENS_PER_SECOND)


class RunTotals:
    """The records and events of a run, added up block by block."""

    def __init__(self) -> None:
        self.num_records = 0
        self.num_discarded = 0
        self.num_nonfinite = 0
        """Losses in a row, up to the last one, that are not finite; discarded ones do not count."""
        self.last_step = -1
        self.last_tick = -1
        self.latest: dict[str, float] = {}
        """The latest value of the signals that every view shows."""
        self.incidents: dict[int, dict[str, Any]] = {}
        """What was last reported about each incident, by its number."""

    def add(self, block: Block) -> bool:
        """Add the next records and events; return whether the run went back in them."""
        for event in block.events:
            # The facts come from a file: they may be anything.
            if event.kind == INCIDENT and type(number := event.facts.get("number")) is int:
                # Merged: a dismissal says nothing else, and holds whatever comes after it.
                self.incidents[number] = {**self.incidents.get(number, {}), **event.facts}
        if not len(block):
            return False
        self.num_records += len(block)
        went_back = int(block.step.min()) <= self.last_step
        self.last_step, self.last_tick = int(block.step[-1]), int(block.tick[-1])
        discarded = block.column(signals.DISCARDED)
        is_discarded = discarded.present & (discarded.values > 0)
        self.num_discarded += int(is_discarded.sum())
        for name in (*_MAY_BE_ODD, *_FINITE):
            column = block.column(name)
            known = column.finite if name in _FINITE else column.present
            if known.any():
                self.latest[name] = float(column.values[known][-1])
        loss = block.column(signals.LOSS)
        is_finite = loss.finite[loss.present & ~is_discarded]
        # Counted from the end; a block without any finite loss goes on with what was before it.
        if is_finite.any():
            self.num_nonfinite = int(np.argmax(is_finite[::-1]))
        else:
            self.num_nonfinite += len(is_finite)
        return went_back

    def seconds_silent(self, now: float, began: float | None = None) -> float:
        """Return the time since the last record, or since `began` if the run has no clock."""
        last = self.latest.get(signals.CLOCK, began)
        return 0.0 if last is None else now - last

    def status(
        self, ended: str | None, seconds_silent: float, stall_seconds: float = STALL_SECONDS
    ) -> RunStatus:
        """Return how the run stands; `ended` is how its journal ended, None if it did not."""
        if ended is not None:
            return RunStatus.ENDED
        usual = STALL_STEPS * self.latest.get(signals.STEP_SECONDS, 0.0)
        is_stalled = seconds_silent > max(stall_seconds, usual)
        return RunStatus.STALLED if is_stalled else RunStatus.RUNNING
