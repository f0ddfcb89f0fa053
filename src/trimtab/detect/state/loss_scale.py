"""Precision: a loss scale that falls and falls, overflows that do not stop, a scale that stands.

A dynamic scaler halves its scale at each overflow and doubles it after many good steps; one halving
now and then is how it works, and several at the start are how it finds its range.
"""

from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS_SCALE
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.rows import Row, Seen

FLOOR, LOWER = 1.0, 65536.0
"""A scale under 1 shrinks the loss: whatever overflows now is not the scaler's business. It is told
again when the scale is so many times lower still."""

WITHIN, MANY, COLLAPSE = 100, 3, 6
"""So many falls within so many steps are many, and so many a collapse. Source: 3 in 100 is what
published practice for fp16 looks into; 6 in a row leave 1/64 of the scale. A healthy scaler falls
about once in the 1,000 to 2,000 steps after which it tries a higher scale."""

SETTLED = 64
"""Records without a move after which a scaler has found its range."""

STANDS = 20_000
"""Records without any move after which a scale is not dynamic. Source: ten times the usual interval
of growth."""


class Precision:
    """A warning when falls become many, an alarm when they go on, a note on a scale that stands."""

    name = "precision"
    hears = Known.NOTHING

    def __init__(self) -> None:
        self._last: float | None = None
        self._count, self._moved = 0, 0
        """Records so far, and the one at which the scale last moved."""
        self._has_settled = self._has_moved = False
        self._floor = FLOOR
        """The scale under which it is told next."""
        self._falls: list[int] = []
        """Steps at which it lately fell."""

    def hear(self, known: Known) -> None:
        """No event excuses an overflow."""

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        value = row.signals.get(LOSS_SCALE)
        if value is None or value != value:
            return []
        self._count += 1
        if value != self._last:
            return self._move(Seen(row.tick, row.step, value), self._count)
        if self._has_moved or self._count - self._moved != STANDS:
            return []
        seen = Seen(row.tick, row.step, value)
        return [_finding(Symptom.SCALE_FROZEN, Severity.INFO, seen)]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
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
            still = self._moved + STANDS - begin - 1
            if not self._has_moved and self._moved and 0 <= still < at:
                findings.append(_finding(Symptom.SCALE_FROZEN, Severity.INFO, seen(still)))
            if at < len(rows):
                findings += self._move(seen(at), begin + at + 1)
        return findings

    def state_dict(self) -> dict[str, Any]:
        """The scale, and where it moved."""
        return {
            "scale": [self._last, self._floor],
            "counts": [self._count, self._moved],
            "flags": [self._has_settled, self._has_moved],
            "falls": list(self._falls),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._last, self._floor = state["scale"]
        self._count, self._moved = state["counts"]
        self._has_settled, self._has_moved = state["flags"]
        self._falls = list(state["falls"])

    def _move(self, seen: Seen, count: int) -> list[Finding]:
        """The scale is another one, at so many records."""
        findings = []
        last, self._last = self._last, seen.value
        if last is not None:
            self._has_settled |= count - self._moved > SETTLED
            self._has_moved = True
            if seen.value < last and self._has_settled:
                recent = [step for step in self._falls if 0 < seen.step - step < WITHIN]
                self._falls = [*recent, seen.step]
                if len(self._falls) == MANY:
                    findings.append(_finding(Symptom.OVERFLOWS, Severity.WARN, seen))
                if len(self._falls) == COLLAPSE:
                    findings.append(_finding(Symptom.SCALE_COLLAPSE, Severity.ALARM, seen))
        self._moved = count
        if seen.value < self._floor:
            self._floor = seen.value / LOWER
            findings.append(_finding(Symptom.SCALE_COLLAPSE, Severity.ALARM, seen))
        return findings


def _finding(symptom: Symptom, severity: Severity, seen: Seen) -> Finding:
    return Finding(
        detector=Precision.name,
        symptom=symptom,
        severity=severity,
        signal=LOSS_SCALE,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        false_per_10k=FALSE_PER_10K.get(Precision.name) if severity is Severity.ALARM else None,
    )
