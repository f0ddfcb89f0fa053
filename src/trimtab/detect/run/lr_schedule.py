"""Schedule: a learning rate that rises again in the middle of its decay.

Schedules rise once, stay, and fall, or fall in steps; cosines with restarts jump up, which is
another finding. A rate that has been falling and then climbs, record by record, has its sign wrong,
or a warm-up that nobody meant to repeat.
"""

from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LR
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.rows import Row, Seen

FALLS, RISES = 32, 8
"""Falls in a row that make a decay, and rises in a row after them that are none of it. Equal rates
count as neither. Chosen: printed rates are rounded, so one rise or two may be the printing."""


class Schedule:
    """One finding for a run whose rate rises in its decay; cyclic schedules are told once."""

    name = "schedule"
    hears = Known.RESUMED | Known.WENT_BACK | Known.CHANGED

    def __init__(self) -> None:
        self._last: float | None = None
        self._falls, self._rises = 0, 0
        self._was_told = False

    def hear(self, known: Known) -> None:
        """A resume or a change may bring a new warm-up."""
        self._last, self._falls, self._rises = None, 0, 0

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        value = row.signals.get(LR)
        if value is None or value != value:
            return []
        last, self._last = self._last, value
        if last is None or value == last or not self._moved(value > last, 1):
            return []
        return [_finding(Seen(row.tick, row.step, value))]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
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

    def state_dict(self) -> dict[str, Any]:
        """The last rate, and how often in a row it fell and rose."""
        counts = [self._falls, self._rises]
        return {"last": self._last, "counts": counts, "was_told": self._was_told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._last, self._was_told = state["last"], bool(state["was_told"])
        self._falls, self._rises = state["counts"]

    def _moved(self, rose: bool, times: int) -> bool:
        """Count so many moves of one kind; whether they are to be told."""
        if not rose:
            if self._rises >= RISES:
                self._falls = 0
            self._falls, self._rises = self._falls + times, 0
            return False
        self._rises += times
        if self._was_told or self._falls < FALLS or self._rises < RISES:
            return False
        self._was_told = True
        return True


def _finding(seen: Seen) -> Finding:
    return Finding(
        detector=Schedule.name,
        symptom=Symptom.LR_RISING,
        severity=Severity.ALARM,
        signal=LR,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        false_per_10k=FALSE_PER_10K.get(Schedule.name),
        facts={"rises": float(RISES)},
    )
