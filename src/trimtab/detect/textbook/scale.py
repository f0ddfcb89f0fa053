"""The textbook loss-scale rule: a scale under 1 means that every step overflows."""

import math

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS_SCALE
from trimtab.detect.textbook.thresholds import TextbookThresholds
from trimtab.detect.tools.rows import Seen


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
        return [self._finding(Seen(record.tick, record.step, scale))]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        scale = block.column(LOSS_SCALE)
        rows = np.flatnonzero(scale.finite)
        if not len(rows):
            return []
        values = scale.values[rows]
        under = values < self._floor
        before = np.concatenate(([self._is_under], under[:-1]))
        self._is_under = bool(under[-1])
        return [
            self._finding(Seen.at(block, rows[at], values[at]))
            for at in np.flatnonzero(under & ~before).tolist()
        ]

    def _finding(self, seen: Seen) -> Finding:
        return Finding(
            detector=self.name,
            symptom=Symptom.SCALE_COLLAPSE,
            severity=Severity.ALARM,
            signal=LOSS_SCALE,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            limit=self._floor,
        )
