"""Counters: counts that must not go back, and a loss that is no longer recorded.

The step, the data position and the optimizer's count go forward within an attempt. A data position
that goes back to where the run started is the next epoch.
"""

import numpy as np

from trimtab.core.block import NO_POSITION, Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import ADAM_STEP, LOSS

MAX_STANDING = 32
"""Records in which the optimizer's count may stand still while steps continue: a scaler that finds
its range skips up to a dozen."""

MIN_MISSING, MISSING_TIMES = 64, 8
"""Records without a loss, and times the longest such gap so far, after which it is missing."""

MIN_LOSSES = 8
"""Losses that must have been recorded before one can be missing."""

MAX_COUNT = 1e15
"""No optimizer counts this far."""


class Counters(Detector):
    """One finding for each count that goes back, and for a count or a loss that has stopped."""

    name = "counters"
    listens_to = KnownChange.WENT_BACK

    def __init__(self) -> None:
        self._step: int | None = None
        self._position: int | None = None
        self._first_position: int | None = None
        self._counted: float | None = None
        self._standing = 0
        self._num_losses, self._missing, self._longest = 0, 0, 0

    def on_event(self, change: KnownChange) -> None:
        """A new attempt may start anywhere."""
        self._step = self._position = self._counted = None
        self._standing = 0

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        findings = []
        step, self._step = self._step, record.step
        if step is not None and record.step < step:
            findings.append(self._back(record, Symptom.WENT_BACK, "step", record.step, step))
        position = record.data_position
        if position != NO_POSITION:
            last, self._position = self._position, position
            if self._first_position is None:
                self._first_position = position
            if last is not None and self._first_position < position < last:
                findings.append(
                    self._back(record, Symptom.DATA_BACK, "data_position", position, last)
                )
        findings += self._judge_count(record)
        return findings + self._judge_loss(record)

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the first and last row, and those with a count, if all else is in order."""
        is_in_order = (
            self._num_losses >= MIN_LOSSES
            and bool(block.column(LOSS).present.all())
            and not (np.diff(block.step) < 0).any()
            and not (np.diff(block.data_position) < 0).any()
            and (block.data_position[0] == NO_POSITION) == (block.data_position[-1] == NO_POSITION)
        )
        if not is_in_order:
            return np.arange(len(block))
        is_relevant = block.column(ADAM_STEP).present.copy()
        is_relevant[[0, -1]] = True  # what comes next is compared with the last record
        return np.flatnonzero(is_relevant)

    def _judge_count(self, record: Record) -> list[Finding]:
        """Judge the optimizer's count."""
        count = record.signals.get(ADAM_STEP)
        if count is None or not abs(count) < MAX_COUNT:
            return []
        last, self._counted = self._counted, count
        if last is None or count > last:
            self._standing = 0
            return []
        if count < last:
            self._standing = 0
            return [self._back(record, Symptom.STATE_LOST, ADAM_STEP, count, last)]
        self._standing += 1
        if self._standing != MAX_STANDING:
            return []
        return [self._back(record, Symptom.FROZEN, ADAM_STEP, count, last)]

    def _judge_loss(self, record: Record) -> list[Finding]:
        """Judge whether a loss was recorded."""
        if LOSS in record.signals:
            self._num_losses = min(self._num_losses + 1, MIN_LOSSES)
            self._longest, self._missing = max(self._longest, self._missing), 0
            return []
        self._missing += 1
        max_missing = max(MIN_MISSING, MISSING_TIMES * self._longest)
        if self._num_losses < MIN_LOSSES or self._missing != max_missing:
            return []
        missing = float(self._missing)
        return [self.finding(record, Symptom.MISSING_LOSS, Severity.ALARM, LOSS, value=missing)]

    def _back(
        self, record: Record, symptom: Symptom, signal: str, value: float, last: float
    ) -> Finding:
        """Return the finding for a count that is not beyond the last one."""
        # A step that goes back is mostly a logger with several writers.
        severity = Severity.WARN if symptom is Symptom.WENT_BACK else Severity.ALARM
        return self.finding(
            record, symptom, severity, signal, value=float(value), expected=float(last)
        )
