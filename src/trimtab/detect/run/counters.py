"""Order: counters that must not go back, and a loss that is no longer recorded.

The step, the place in the data and the optimizer's own count go forward inside an attempt. A place
that goes back to where the run began is the next epoch.
"""

from typing import Any

import numpy as np

from trimtab.core.block import NO_POSITION, Block, IntArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import ADAM_STEP, LOSS
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.rows import Row

STANDS = 32
"""Records over which the optimizer may count nothing while steps go on: a scaler that finds its
range skips up to a dozen."""

SILENCE, SILENCE_TIMES = 64, 8
"""Records without a loss, and times the longest such gap so far, after which it is missed."""

FEWEST = 8
"""Losses that must have been recorded before one is missed."""

MOST = 1e15
"""No optimizer counts that far."""


class Order:
    """One finding at each step back, and one for a count or a loss that has stopped."""

    name = "order"
    hears = Known.WENT_BACK

    def __init__(self) -> None:
        self._step: int | None = None
        self._position: int | None = None
        self._first_position: int | None = None
        self._counted: float | None = None
        self._standing = 0
        self._num_losses, self._silent, self._longest = 0, 0, 0

    def hear(self, known: Known) -> None:
        """A new attempt may begin anywhere."""
        self._step = self._position = self._counted = None
        self._standing = 0

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings = []
        place = row.step, row.tick
        step, self._step = self._step, row.step
        if step is not None and row.step < step:
            findings.append(_finding(Symptom.WENT_BACK, "step", place, row.step, step))
        if row.data_position != NO_POSITION:
            last, self._position = self._position, row.data_position
            if self._first_position is None:
                self._first_position = row.data_position
            if last is not None and self._first_position < row.data_position < last:
                at = row.data_position
                findings.append(_finding(Symptom.DATA_BACK, "data_position", place, at, last))
        findings += self._count(row.signals.get(ADAM_STEP), place)
        return findings + self._listen(LOSS in row.signals, place)

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        findings = self._sweep_steps(block) + self._sweep_positions(block)
        findings += self._sweep_counts(block) + self._sweep_losses(block)
        return sorted(findings, key=lambda finding: finding.tick)

    def state_dict(self) -> dict[str, Any]:
        """Where each counter stands."""
        return {
            "step": self._step,
            "position": [self._position, self._first_position],
            "counted": [self._counted, self._standing],
            "losses": [self._num_losses, self._silent, self._longest],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._step = state["step"]
        self._position, self._first_position = state["position"]
        self._counted, self._standing = state["counted"]
        self._num_losses, self._silent, self._longest = state["losses"]

    def _count(self, count: float | None, place: tuple[int, int]) -> list[Finding]:
        """The optimizer's own count."""
        if count is None or not abs(count) < MOST:
            return []
        last, self._counted = self._counted, count
        if last is None or count > last:
            self._standing = 0
            return []
        if count < last:
            self._standing = 0
            return [_finding(Symptom.STATE_LOST, ADAM_STEP, place, count, last)]
        self._standing += 1
        if self._standing != STANDS:
            return []
        return [_finding(Symptom.FROZEN, ADAM_STEP, place, count, last)]

    def _listen(self, is_heard: bool, place: tuple[int, int]) -> list[Finding]:
        """Whether there is a loss."""
        if is_heard:
            self._hear_losses(1)
            return []
        self._silent += 1
        if self._num_losses < FEWEST or self._silent != self._patience:
            return []
        return [_finding(Symptom.MISSING_LOSS, LOSS, place, self._silent, None)]

    @property
    def _patience(self) -> int:
        return max(SILENCE, SILENCE_TIMES * self._longest)

    def _sweep_steps(self, block: Block) -> list[Finding]:
        before = _before(block.step, self._step)
        self._step = int(block.step[-1])
        steps = block.step.tolist()
        return [
            _finding(Symptom.WENT_BACK, "step", _place(block, row), steps[row], int(before[row]))
            for row in np.flatnonzero(block.step < before).tolist()
        ]

    def _sweep_positions(self, block: Block) -> list[Finding]:
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

    def _sweep_counts(self, block: Block) -> list[Finding]:
        column = block.columns.get(ADAM_STEP)
        if column is None:
            return []
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(column.present & (np.abs(column.values) < MOST))
        counts = column.values[rows]
        if self._counted is not None and (np.diff(counts, prepend=self._counted) > 0).all():
            if len(rows):  # nearly always: it counts on
                self._counted, self._standing = float(counts[-1]), 0
            return []
        return [
            finding
            for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
            for finding in self._count(count, _place(block, row))
        ]

    def _sweep_losses(self, block: Block) -> list[Finding]:
        findings = []
        edges = np.flatnonzero(np.diff(block.column(LOSS).present, prepend=True, append=True))
        end = 0
        for first, last in edges.reshape(-1, 2).tolist():
            self._hear_losses(first - end)
            end = last
            missed = first + self._patience - self._silent - 1
            if self._num_losses >= FEWEST and first <= missed < last:
                silence = self._patience
                findings.append(
                    _finding(Symptom.MISSING_LOSS, LOSS, _place(block, missed), silence, None)
                )
            self._silent += last - first
        self._hear_losses(len(block) - end)
        return findings

    def _hear_losses(self, count: int) -> None:
        if count:
            self._num_losses += count
            self._longest = max(self._longest, self._silent)
            self._silent = 0


def _before(values: IntArray, last: int | None) -> IntArray:
    """Each value's forerunner; the first is its own where there is none."""
    return np.concatenate(([values[0] if last is None else last], values[:-1]))


def _place(block: Block, row: int) -> tuple[int, int]:
    return int(block.step[row]), int(block.tick[row])


ALARMS = frozenset({Symptom.DATA_BACK, Symptom.STATE_LOST, Symptom.FROZEN, Symptom.MISSING_LOSS})
"""A step that goes back is mostly a logger with several writers: a warning."""


def _finding(
    symptom: Symptom, signal: str, place: tuple[int, int], value: float, expected: float | None
) -> Finding:
    is_alarm = symptom in ALARMS
    return Finding(
        detector=Order.name,
        symptom=symptom,
        severity=Severity.ALARM if is_alarm else Severity.WARN,
        signal=signal,
        step=place[0],
        tick=place[1],
        value=float(value),
        expected=None if expected is None else float(expected),
        false_per_10k=FALSE_PER_10K.get(Order.name) if is_alarm else None,
    )
