"""LossScale: a loss scale that keeps falling, falls under 1, or never moves.

A dynamic scaler halves its scale at each overflow and doubles it after many good steps. An
occasional halving is how it works, and several at the start are how it finds its range.
"""

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS_SCALE
from trimtab.detect.tools.rows import Seen

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
        self._count, self._moved = 0, 0
        """Records so far, and the one at which the scale last moved."""
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
        self._count += 1
        if value != self._last:
            return self._move(Seen(record.tick, record.step, value), self._count)
        if self._has_moved or self._count - self._moved != MAX_CONSTANT:
            return []
        seen = Seen(record.tick, record.step, value)
        return [_finding(Symptom.SCALE_FROZEN, Severity.INFO, seen)]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        column = block.columns.get(LOSS_SCALE)
        if column is None:
            return []
        rows = np.flatnonzero(column.present & ~np.isnan(column.values))
        if not len(rows):
            return []
        values = column.values[rows]
        last = np.concatenate(([np.nan if self._last is None else self._last], values[:-1]))
        begin, self._count = self._count, self._count + len(rows)

        def seen(at: int) -> Seen:
            row = rows[at]
            return Seen.at(block, row, values[at])

        findings = []
        for at in [*np.flatnonzero(values != last).tolist(), len(rows)]:
            due = self._moved + MAX_CONSTANT - begin - 1
            if not self._has_moved and self._moved and 0 <= due < at:
                findings.append(_finding(Symptom.SCALE_FROZEN, Severity.INFO, seen(due)))
            if at < len(rows):
                findings += self._move(seen(at), begin + at + 1)
        return findings

    def _move(self, seen: Seen, count: int) -> list[Finding]:
        """The scale differs from the last one, in record number `count`."""
        findings = []
        last, self._last = self._last, seen.value
        if last is not None:
            self._has_settled |= count - self._moved > MIN_SETTLED
            self._has_moved = True
            if seen.value < last and self._has_settled:
                recent = [step for step in self._falls if 0 < seen.step - step < FALL_WINDOW]
                self._falls = [*recent, seen.step]
                if len(self._falls) == FALLS_FOR_WARNING:
                    findings.append(_finding(Symptom.OVERFLOWS, Severity.WARN, seen))
                if len(self._falls) == FALLS_FOR_ALARM:
                    findings.append(_finding(Symptom.SCALE_COLLAPSE, Severity.ALARM, seen))
        self._moved = count
        if seen.value < self._floor:
            self._floor = seen.value / LOWER_TIMES
            findings.append(_finding(Symptom.SCALE_COLLAPSE, Severity.ALARM, seen))
        return findings


def _finding(symptom: Symptom, severity: Severity, seen: Seen) -> Finding:
    return Finding(
        detector=LossScale.name,
        symptom=symptom,
        severity=severity,
        signal=LOSS_SCALE,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
    )
