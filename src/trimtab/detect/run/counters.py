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
        place = record.step, record.tick
        step, self._step = self._step, record.step
        if step is not None and record.step < step:
            findings.append(_finding(Symptom.WENT_BACK, "step", place, record.step, step))
        if record.data_position != NO_POSITION:
            last, self._position = self._position, record.data_position
            if self._first_position is None:
                self._first_position = record.data_position
            if last is not None and self._first_position < record.data_position < last:
                at = record.data_position
                findings.append(_finding(Symptom.DATA_BACK, "data_position", place, at, last))
        findings += self._judge_count(record.signals.get(ADAM_STEP), place)
        return findings + self._judge_loss(LOSS in record.signals, place)

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        findings = self._judge_steps(block) + self._judge_positions(block)
        findings += self._judge_counts(block) + self._judge_presence(block)
        return sorted(findings, key=lambda finding: finding.tick)

    def _judge_count(self, count: float | None, place: tuple[int, int]) -> list[Finding]:
        """Judge the optimizer's count."""
        if count is None or not abs(count) < MAX_COUNT:
            return []
        last, self._counted = self._counted, count
        if last is None or count > last:
            self._standing = 0
            return []
        if count < last:
            self._standing = 0
            return [_finding(Symptom.STATE_LOST, ADAM_STEP, place, count, last)]
        self._standing += 1
        if self._standing != MAX_STANDING:
            return []
        return [_finding(Symptom.FROZEN, ADAM_STEP, place, count, last)]

    def _judge_loss(self, is_recorded: bool, place: tuple[int, int]) -> list[Finding]:
        """Judge whether a loss was recorded."""
        if is_recorded:
            self._see_losses(1)
            return []
        self._missing += 1
        if self._num_losses < MIN_LOSSES or self._missing != self._max_missing:
            return []
        return [_finding(Symptom.MISSING_LOSS, LOSS, place, self._missing, None)]

    @property
    def _max_missing(self) -> int:
        return max(MIN_MISSING, MISSING_TIMES * self._longest)

    def _judge_steps(self, block: Block) -> list[Finding]:
        before = _before(block.step, self._step)
        self._step = int(block.step[-1])
        steps = block.step.tolist()
        return [
            _finding(Symptom.WENT_BACK, "step", _place(block, row), steps[row], int(before[row]))
            for row in np.flatnonzero(block.step < before).tolist()
        ]

    def _judge_positions(self, block: Block) -> list[Finding]:
        rows = np.flatnonzero(block.data_position != NO_POSITION)
        if not len(rows):
            return []
        places = block.data_position[rows]
        if self._first_position is None:
            self._first_position = int(places[0])
        before = _before(places, self._position)
        self._position = int(places[-1])
        back = np.flatnonzero((places < before) & (places > self._first_position))
        return [
            _finding(
                Symptom.DATA_BACK,
                "data_position",
                _place(block, int(rows[at])),
                int(places[at]),
                int(before[at]),
            )
            for at in back.tolist()
        ]

    def _judge_counts(self, block: Block) -> list[Finding]:
        column = block.columns.get(ADAM_STEP)
        if column is None:
            return []
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(column.present & (np.abs(column.values) < MAX_COUNT))
        counts = column.values[rows]
        if self._counted is not None and (np.diff(counts, prepend=self._counted) > 0).all():
            if len(rows):  # nearly always: the count rises
                self._counted, self._standing = float(counts[-1]), 0
            return []
        return [
            finding
            for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
            for finding in self._judge_count(count, _place(block, row))
        ]

    def _judge_presence(self, block: Block) -> list[Finding]:
        findings = []
        edges = np.flatnonzero(np.diff(block.column(LOSS).present, prepend=True, append=True))
        end = 0
        for first, last in edges.reshape(-1, 2).tolist():
            self._see_losses(first - end)
            end = last
            missed = first + self._max_missing - self._missing - 1
            if self._num_losses >= MIN_LOSSES and first <= missed < last:
                missing = self._max_missing
                findings.append(
                    _finding(Symptom.MISSING_LOSS, LOSS, _place(block, missed), missing, None)
                )
            self._missing += last - first
        self._see_losses(len(block) - end)
        return findings

    def _see_losses(self, count: int) -> None:
        if count:
            self._num_losses += count
            self._longest = max(self._longest, self._missing)
            self._missing = 0


def _before(values: IntArray, last: int | None) -> IntArray:
    """The value before each value; before the first it is `last`, or the value itself."""
    return np.concatenate(([values[0] if last is None else last], values[:-1]))


def _place(block: Block, row: int) -> tuple[int, int]:
    return int(block.step[row]), int(block.tick[row])


ALARMS = frozenset({Symptom.DATA_BACK, Symptom.STATE_LOST, Symptom.FROZEN, Symptom.MISSING_LOSS})
"""A step that goes back is mostly a logger with several writers, so only a warning."""


def _finding(
    symptom: Symptom, signal: str, place: tuple[int, int], value: float, expected: float | None
) -> Finding:
    is_alarm = symptom in ALARMS
    return Finding(
        detector=Counters.name,
        symptom=symptom,
        severity=Severity.ALARM if is_alarm else Severity.WARN,
        signal=signal,
        step=place[0],
        tick=place[1],
        value=float(value),
        expected=None if expected is None else float(expected),
    )
