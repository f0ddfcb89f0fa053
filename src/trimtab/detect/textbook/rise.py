"""The textbook divergence rule: 200 losses in a row, each above the one before."""

import math

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS
from trimtab.detect.textbook.thresholds import TextbookThresholds


class TextbookRise(Detector):
    """One alarm when an unbroken rise reaches its full length."""

    name = "textbook-rise"
    not_saved = ("_length",)

    def __init__(self, config: TextbookThresholds) -> None:
        self._length = config.rise_records
        self._last = math.nan  # no loss is above it, so the first one starts at zero
        self._num_rises = 0

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        loss = record.signals.get(LOSS)
        if loss is None:
            return []
        # A jump to infinity is a different symptom, not a slow rise.
        rose = loss > self._last and math.isfinite(loss)
        self._last, self._num_rises = loss, self._num_rises + 1 if rose else 0
        if self._num_rises != self._length:
            return []
        facts = {"rises": float(self._length)}
        return [self.finding(record, Symptom.RISING_LOSS, Severity.ALARM, LOSS, facts=facts)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a loss."""
        return np.flatnonzero(block.column(LOSS).present)
