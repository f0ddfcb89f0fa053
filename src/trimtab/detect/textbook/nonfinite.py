"""NaN and infinity, in a channel of their own: seen first, never part of a baseline."""

from typing import Any

import numpy as np

from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import ADAM_V_NORM, GRAD_NORM, LOSS, PARAM_NORM, UPDATE_NORM

_SYMPTOMS = {
    LOSS: Symptom.NONFINITE_LOSS,
    GRAD_NORM: Symptom.NONFINITE_GRAD_NORM,
    # A bit flip can leave the loss finite while one of these is not; the weights are ruined then.
    PARAM_NORM: Symptom.NONFINITE_NORM,
    UPDATE_NORM: Symptom.NONFINITE_NORM,
    ADAM_V_NORM: Symptom.NONFINITE_NORM,
}


class NonFinite:
    """One alarm at the start of each non-finite stretch of a signal that must stay finite."""

    name = "non-finite"

    def __init__(self) -> None:
        self._inside: dict[str, bool] = {}

    def feed(self, block: Block) -> list[Finding]:
        """Take the next records; return the starts of non-finite stretches."""
        findings = [
            Finding(
                detector=self.name,
                symptom=symptom,
                severity=Severity.ALARM,
                signal=signal,
                step=int(block.step[row]),
                tick=int(block.tick[row]),
                value=float(block.column(signal).values[row]),
            )
            for signal, symptom in _SYMPTOMS.items()
            if signal in block.columns
            for row in self._starts(block, signal)
        ]
        return sorted(findings, key=lambda finding: finding.tick)

    def state_dict(self) -> dict[str, Any]:
        """Which signals are inside a non-finite stretch."""
        return {"inside": dict(self._inside)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._inside = dict(state["inside"])

    def _starts(self, block: Block, signal: str) -> list[int]:
        column = block.column(signal)
        rows = np.flatnonzero(column.present)  # a missing record neither starts nor ends a stretch
        if not len(rows):
            return []
        bad: BoolArray = column.nonfinite[rows]
        before = np.concatenate(([self._inside.get(signal, False)], bad[:-1]))
        self._inside[signal] = bool(bad[-1])
        return [int(row) for row in rows[bad & ~before]]
