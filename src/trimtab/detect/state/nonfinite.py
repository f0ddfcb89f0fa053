"""NonFinite: NaN and infinite values, found before anything else and never part of a baseline."""

import math

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import (
    ADAM_V_NORM,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    PARAM_NORM,
    UPDATE_NORM,
)

SYMPTOMS = {
    LOSS: Symptom.NONFINITE_LOSS,
    GRAD_NORM: Symptom.NONFINITE_GRAD_NORM,
    # A bit flip can leave the loss finite while one of these is not; the weights are ruined then.
    PARAM_NORM: Symptom.NONFINITE_NORM,
    UPDATE_NORM: Symptom.NONFINITE_NORM,
    ADAM_V_NORM: Symptom.NONFINITE_NORM,
}


class NonFinite(Detector):
    """One finding at the start of each non-finite stretch of a signal that must stay finite.

    A gradient that overflows under a loss scaler is normal: the scaler skips the step and halves
    its scale. How often that happens is the business of other detectors.
    """

    name = "non-finite"
    not_saved = ("_under_scaler",)

    def __init__(self, under_scaler: Severity = Severity.INFO) -> None:
        self._under_scaler = under_scaler
        """Of a non-finite gradient norm in a record with a loss scale."""
        self._is_inside = dict.fromkeys(SYMPTOMS, False)

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        findings = []
        for signal, was_inside in self._is_inside.items():
            value = record.signals.get(signal)
            if value is None:  # a missing value neither starts nor ends a stretch
                continue
            is_bad = not math.isfinite(value)
            if is_bad != was_inside:
                self._is_inside[signal] = is_bad
                if is_bad:
                    is_overflow = signal == GRAD_NORM and LOSS_SCALE in record.signals
                    severity = self._under_scaler if is_overflow else Severity.ALARM
                    findings.append(self.finding(record, SYMPTOMS[signal], severity, signal))
        return findings

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows in which a stretch of non-finite values begins or ends."""
        is_relevant = np.zeros(len(block), dtype=np.bool_)
        for signal, was_inside in self._is_inside.items():
            column = block.column(signal)
            rows = np.flatnonzero(column.present)
            is_relevant[rows[np.diff(column.nonfinite[rows], prepend=was_inside)]] = True
        return np.flatnonzero(is_relevant)
