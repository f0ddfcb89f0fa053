"""The textbook divergence rule: 200 losses in a row, each above the one before."""

import math

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS
from trimtab.detect.textbook.thresholds import TextbookThresholds
from trimtab.detect.tools.rows import Seen


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
        rose = loss > self._last and math.isfinite(loss)
        self._last, self._num_rises = loss, self._num_rises + 1 if rose else 0
        if self._num_rises != self._length:
            return []
        return [self._finding(Seen(record.tick, record.step, loss))]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        loss = block.column(LOSS)
        rows = np.flatnonzero(loss.present)
        if not len(rows):
            return []
        values = loss.values[rows]
        with np.errstate(invalid="ignore"):
            rose = values > np.concatenate(([self._last], values[:-1]))
        rose &= np.isfinite(values)  # a jump to infinity is a different symptom, not a slow rise
        index = np.arange(1, len(rows) + 1)
        rises = index - np.maximum.accumulate(np.where(rose, -self._num_rises, index))
        self._last, self._num_rises = float(values[-1]), int(rises[-1])
        return [
            self._finding(Seen.at(block, rows[at], values[at]))
            for at in np.flatnonzero(rises == self._length).tolist()
        ]

    def _finding(self, seen: Seen) -> Finding:
        return Finding(
            detector=self.name,
            symptom=Symptom.RISING_LOSS,
            severity=Severity.ALARM,
            signal=LOSS,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            facts={"rises": float(self._length)},
        )
