"""The textbook loss-scale rule: a scale under 1 means that every step overflows."""

import math

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS_SCALE
from trimtab.detect.textbook.thresholds import TextbookThresholds


class TextbookScale(Detector):
    """One alarm each time the loss scale falls under the floor."""

    name = "textbook-scale"
    not_saved = ("_floor",)

    def __init__(self, config: TextbookThresholds) -> None:
        self._floor = config.scale_floor
        self._is_under = False

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        scale = record.signals.get(LOSS_SCALE, math.nan)
        if not math.isfinite(scale):
            return []
        was_under, self._is_under = self._is_under, scale < self._floor
        if was_under or not self._is_under:
            return []
        return [
            self.finding(
                record, Symptom.SCALE_COLLAPSE, Severity.ALARM, LOSS_SCALE, limit=self._floor
            )
        ]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a loss scale."""
        return np.flatnonzero(block.column(LOSS_SCALE).present)
