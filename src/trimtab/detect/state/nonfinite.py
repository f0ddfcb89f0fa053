"""Integrity: NaN and infinity, in a channel of their own: seen first, never part of a baseline."""

import math
from typing import Any

import numpy as np

from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import (
    ADAM_V_NORM,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    PARAM_NORM,
    UPDATE_NORM,
)
from trimtab.detect.known_events import Known
from trimtab.detect.tools.rows import Row, Seen

SYMPTOMS = {
    LOSS: Symptom.NONFINITE_LOSS,
    GRAD_NORM: Symptom.NONFINITE_GRAD_NORM,
    # A bit flip can leave the loss finite while one of these is not; the weights are ruined then.
    PARAM_NORM: Symptom.NONFINITE_NORM,
    UPDATE_NORM: Symptom.NONFINITE_NORM,
    ADAM_V_NORM: Symptom.NONFINITE_NORM,
}


class Integrity:
    """One finding at the start of each non-finite stretch of a signal that must stay finite.

    A gradient that overflows under a loss scaler is the scaler at work: the step is skipped and the
    scale halved. There it is a note; how often it happens is another detector's business.
    """

    name = "integrity"
    hears = Known.NOTHING

    def __init__(self) -> None:
        self._inside = dict.fromkeys(SYMPTOMS, False)

    def hear(self, known: Known) -> None:
        """No event excuses a NaN."""

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings = []
        for signal, was_inside in self._inside.items():
            value = row.signals.get(signal)
            if value is None:  # a missing record neither starts nor ends a stretch
                continue
            is_bad = not math.isfinite(value)
            if is_bad != was_inside:
                self._inside[signal] = is_bad
                if is_bad:
                    seen = Seen(row.tick, row.step, value)
                    findings.append(_finding(signal, seen, LOSS_SCALE in row.signals))
        return findings

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        scaled = block.column(LOSS_SCALE).present
        findings = []
        for signal in SYMPTOMS:
            column = block.columns.get(signal)
            if column is None:
                continue
            rows = np.flatnonzero(column.present)
            if not len(rows):
                continue
            bad: BoolArray = column.nonfinite[rows]
            before = np.concatenate(([self._inside[signal]], bad[:-1]))
            self._inside[signal] = bool(bad[-1])
            for row in rows[bad & ~before].tolist():
                seen = Seen.at(block, row, column.values[row])
                findings.append(_finding(signal, seen, bool(scaled[row])))
        return findings

    def state_dict(self) -> dict[str, Any]:
        """Which signals are inside a non-finite stretch."""
        return {"inside": dict(self._inside)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._inside = dict(state["inside"])


def _finding(signal: str, seen: Seen, is_scaled: bool) -> Finding:
    is_overflow = signal == GRAD_NORM and is_scaled
    return Finding(
        detector=Integrity.name,
        symptom=SYMPTOMS[signal],
        severity=Severity.INFO if is_overflow else Severity.ALARM,
        signal=signal,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
    )
