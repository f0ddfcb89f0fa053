"""LrSchedule: a learning rate that rises again in the middle of its decay.

Schedules rise once, stay, and fall, or fall in steps; cosines with restarts jump up, which is a
different finding. A rate that has been falling and then climbs, record by record, has the wrong
sign or repeats its warm-up by mistake.
"""

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LR

FALLS, RISES = 32, 8
"""Falls in a row that make a decay, and rises in a row after them that are not part of it. Equal
rates count as neither. Chosen: printed rates are rounded, so one or two rises may be rounding."""


class LrSchedule(Detector):
    """One finding for a run whose rate rises in its decay; cyclic schedules are reported once."""

    name = "lr-schedule"
    listens_to = KnownChange.RESUMED | KnownChange.WENT_BACK | KnownChange.CHANGED

    def __init__(self) -> None:
        self._last: float | None = None
        self._falls, self._rises = 0, 0
        self._is_reported = False

    def on_event(self, change: KnownChange) -> None:
        """A resume or a change may bring a new warm-up."""
        self._last, self._falls, self._rises = None, 0, 0

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        value = record.signals.get(LR)
        if value is None or value != value:
            return []
        last, self._last = self._last, value
        if last is None or value == last:
            return []
        if value < last:
            if self._rises >= RISES:
                self._falls = 0
            self._falls, self._rises = min(self._falls + 1, FALLS), 0
            return []
        self._rises = min(self._rises + 1, RISES)
        if self._is_reported or self._falls < FALLS or self._rises < RISES:
            return []
        self._is_reported = True
        facts = {"rises": float(RISES)}
        return [self.finding(record, Symptom.LR_RISING, Severity.ALARM, LR, facts=facts)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a rate; of a rate that moves one way only, the first and last."""
        column = block.column(LR)
        rows = np.flatnonzero(column.present & ~np.isnan(column.values))
        if self._is_reported or not len(rows):
            return rows[:0]
        values = column.values[rows]
        before = np.concatenate(([values[0] if self._last is None else self._last], values[:-1]))
        rose, fell = values > before, values < before
        if rose.any() and fell.any():
            return rows
        # No more moves are counted than these; the next rate is compared with the last one.
        return np.union1d(rows[np.flatnonzero(rose | fell)[:FALLS]], rows[[0, -1]])
