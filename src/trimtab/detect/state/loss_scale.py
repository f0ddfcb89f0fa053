"""LossScale: a loss scale that keeps falling, falls under 1, or never moves.

A dynamic scaler halves its scale at each overflow and doubles it after many good steps. An
occasional halving is how it works, and several at the start are how it finds its range.
"""

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS_SCALE

FLOOR, LOWER_TIMES = 1.0, 65536.0
"""A scale under 1 shrinks the loss: what still overflows is nothing that a scaler can fix. It is
reported again when the scale is this many times lower still."""

FALL_WINDOW, FALLS_FOR_WARNING, FALLS_FOR_ALARM = 100, 3, 6
"""3 falls within 100 steps are a warning, 6 a collapse. Source: 3 in 100 is what published practice
for fp16 looks into; 6 in a row leave 1/64 of the scale. The scale of a healthy scaler falls about
once in the 1,000 to 2,000 steps after which it tries a higher scale."""

MIN_SETTLED = 64
"""Records with a constant scale after which a scaler has found its range."""

MAX_CONSTANT = 20_000
"""Records with a constant scale after which it is not dynamic. Source: ten times the usual growth
interval."""


class LossScale(Detector):
    """A warning for frequent falls, an alarm for more, a note on a scale that never moves."""

    name = "loss-scale"

    def __init__(self) -> None:
        self._last: float | None = None
        self._num_same = 0
        """Records since the scale last moved, up to `_num_counted`."""
        self._has_settled = self._has_moved = False
        self._floor = FLOOR
        """The scale under which the next collapse is reported."""
        self._falls: list[int] = []
        """Steps of the recent falls."""

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        value = record.signals.get(LOSS_SCALE)
        if value is None or value != value:
            return []
        if value != self._last:
            return self._move(record, value)
        if self._num_same == self._num_counted:
            return []
        self._num_same += 1
        if self._has_moved or self._num_same != MAX_CONSTANT:
            return []
        return [self.finding(record, Symptom.SCALE_FROZEN, Severity.INFO, LOSS_SCALE)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a scale, or none if it has been the same for long and still is."""
        column = block.column(LOSS_SCALE)
        rows = np.flatnonzero(column.present)
        is_constant = self._num_same == self._num_counted
        return rows[:0] if is_constant and (column.values[rows] == self._last).all() else rows

    @property
    def _num_counted(self) -> int:
        """How far records with a constant scale are counted: more make no difference."""
        return MIN_SETTLED if self._has_moved else MAX_CONSTANT

    def _move(self, record: Record, value: float) -> list[Finding]:
        """Judge a scale that differs from the last one."""
        findings = []
        last, self._last = self._last, value
        if last is not None:
            self._has_settled |= self._num_same >= MIN_SETTLED
            self._has_moved = True
            if value < last and self._has_settled:
                recent = [step for step in self._falls if 0 < record.step - step < FALL_WINDOW]
                self._falls = [*recent, record.step]
                if len(self._falls) == FALLS_FOR_WARNING:
                    findings.append((Symptom.OVERFLOWS, Severity.WARN))
                if len(self._falls) == FALLS_FOR_ALARM:
                    findings.append((Symptom.SCALE_COLLAPSE, Severity.ALARM))
        self._num_same = 0
        if value < self._floor:
            self._floor = value / LOWER_TIMES
            findings.append((Symptom.SCALE_COLLAPSE, Severity.ALARM))
        return [self.finding(record, *found, LOSS_SCALE) for found in findings]
