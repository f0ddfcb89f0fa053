"""LrSchedule: a learning rate that rises again in the middle of its decay.

Schedules rise once, stay, and fall, or fall in steps; cosines with restarts jump up, which is a
different finding. A rate that has been falling and then climbs, record by record, has the wrong
sign or repeats its warm-up by mistake.
"""

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LR
from trimtab.detect.tools.rows import Seen

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
        if last is None or value == last or not self._moved(value > last, 1):
            return []
        return [_finding(Seen(record.tick, record.step, value))]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        column = block.column(LR)
        rows = np.flatnonzero(column.present & ~np.isnan(column.values))
        if not len(rows):
            return []
        values = column.values[rows]
        before = np.concatenate(([values[0] if self._last is None else self._last], values[:-1]))
        self._last = float(values[-1])
        moved = np.flatnonzero(values != before)
        rose = values[moved] > before[moved]
        turns = np.flatnonzero(np.diff(rose)) + 1
        findings = []
        for first, last in zip([0, *turns], [*turns, len(moved)], strict=True):
            rises_before = self._rises
            if last > first and self._moved(bool(rose[first]), int(last - first)):
                row = int(rows[moved[first + RISES - rises_before - 1]])
                findings.append(_finding(Seen.at(block, row, column.values[row])))
        return findings

    def _moved(self, rose: bool, times: int) -> bool:
        """Count a number of moves of one kind; return whether to report them."""
        if not rose:
            if self._rises >= RISES:
                self._falls = 0
            self._falls, self._rises = self._falls + times, 0
            return False
        self._rises += times
        if self._is_reported or self._falls < FALLS or self._rises < RISES:
            return False
        self._is_reported = True
        return True


def _finding(seen: Seen) -> Finding:
    return Finding(
        detector=LrSchedule.name,
        symptom=Symptom.LR_RISING,
        severity=Severity.ALARM,
        signal=LR,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        facts={"rises": float(RISES)},
    )
