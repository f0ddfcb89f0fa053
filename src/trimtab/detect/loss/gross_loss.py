"""GrossLoss: a loss that is beyond all measure while its baseline is not known yet.

Before a baseline has its first 24 losses, and again after a planned change, only a loss many times
larger than the ones before can be called wrong. No healthy start comes near.
"""

import math

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import median
from trimtab.core.signals import LOSS
from trimtab.detect.tools.baseline import MIN_WINDOW, RECORDS_PER_CELL

NUM_JUDGED = MIN_WINDOW + 2 * RECORDS_PER_CELL
"""Losses until the baseline of the loss is ready: its window, its gap and a cell."""

MIN_BEFORE = 3
"""Losses that must have come before."""

GROSS_TIMES, GROSS_LOSS = 10.0, 10.0
"""Times the median of the losses before, and a loss in its own right. Source: the starts of 42
public tuning runs reach 5 times, at the fourth record of a 7B run."""


class GrossLoss(Detector):
    """One finding for each stretch of gross losses."""

    name = "gross-loss"
    listens_to = KnownChange.CHANGED

    def __init__(self) -> None:
        self._before: list[float] = []
        self._num_left = NUM_JUDGED
        """Losses that are still judged."""
        self._was_gross = False

    def on_event(self, change: KnownChange) -> None:
        """The baseline of the loss starts again."""
        self._num_left = NUM_JUDGED

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        loss = record.signals.get(LOSS, math.nan)
        if not self._num_left or not math.isfinite(loss):
            return []
        self._num_left -= 1
        usual = median(self._before) if len(self._before) >= MIN_BEFORE else math.inf
        limit = max(GROSS_TIMES * abs(usual), GROSS_LOSS)
        was_gross, self._was_gross = self._was_gross, loss > limit
        if not self._was_gross:
            self._before = [*self._before[1 - NUM_JUDGED :], loss]
            return []
        if was_gross:
            return []
        return [
            self.finding(
                record, Symptom.LOSS_SPIKE, Severity.ALARM, LOSS, expected=usual, limit=limit
            )
        ]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows of the first losses."""
        return np.flatnonzero(block.column(LOSS).finite)[: self._num_left]
