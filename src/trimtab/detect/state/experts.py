"""Experts: a router that sends everything to one expert, or nothing to some.

The shares are averages over records (`live/measure/experts.py`), so a single batch shows in none. A
balancing loss comes from a log.
"""

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import BALANCING_LOSS, DEAD_EXPERTS, EXPERT_MAX_SHARE

COLLAPSED = 0.9
"""The share of tokens that one expert gets when the others learn nothing any more. Chosen, not
measured on healthy routers."""

MIN_RECORDS = 3
"""Records in a row before anything is reported."""

DRIFT_TIMES, DRIFT_SHARE = 2.0, 0.5
"""A busiest expert with twice its early share, and half of all tokens, is on its way there. A
balancing loss, which grows with the square of the share, is there with twice its early value."""

EARLY_RECORDS = 8
"""Records whose largest share is that of the start."""


class Experts(Detector):
    """One finding of each kind for each router."""

    name = "experts"

    def __init__(self) -> None:
        self._num_over: dict[str, int] = {}
        """Records in a row, by symptom and signal; negative once it is reported."""
        self._early: dict[str, list[float]] = {}
        """The largest value of the first records by signal, and how many they are."""

    def update(self, record: Record) -> list[Finding]:
        findings = []
        for signal, value in record.signals.items():
            if signal.startswith(DEAD_EXPERTS):
                findings += self._count(record, Symptom.DEAD_EXPERTS, Severity.WARN, signal, 0.0)
            elif signal.startswith(EXPERT_MAX_SHARE):
                findings += self._count(
                    record, Symptom.EXPERT_COLLAPSE, Severity.ALARM, signal, COLLAPSED
                )
                findings += self._drift(record, signal, value, DRIFT_SHARE)
            elif signal.startswith(BALANCING_LOSS):
                findings += self._drift(record, signal, value, 0.0)
        return findings

    def _drift(self, record: Record, signal: str, value: float, least: float) -> list[Finding]:
        largest, count = self._early.setdefault(signal, [0.0, 0.0])
        if count < EARLY_RECORDS:
            self._early[signal] = [max(largest, value), count + 1.0]
            return []
        limit = max(DRIFT_TIMES * largest, least)
        return self._count(record, Symptom.EXPERT_DRIFT, Severity.WARN, signal, limit)

    def relevant_rows(self, block: Block) -> IntArray:
        judged = (DEAD_EXPERTS, EXPERT_MAX_SHARE, BALANCING_LOSS)
        names = [name for name in block.columns if name.startswith(judged)]
        if not names:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(np.any([block.column(name).present for name in names], axis=0))

    def _count(
        self, record: Record, symptom: Symptom, severity: Severity, signal: str, limit: float
    ) -> list[Finding]:
        """Count a record that is over a limit; report when there are enough in a row."""
        key = f"{symptom}: {signal}"
        count = self._num_over.get(key, 0)
        if count < 0:
            return []
        self._num_over[key] = count = count + 1 if record.signals[signal] > limit else 0
        if count < MIN_RECORDS:
            return []
        self._num_over[key] = -1
        return [self.finding(record, symptom, severity, signal, limit=limit)]
