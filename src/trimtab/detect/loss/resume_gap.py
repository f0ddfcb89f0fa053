"""ResumeGap: whether the loss continues after a resume where it was before.

A run that was saved and loaded correctly continues as if nothing had happened. Weights of a
different checkpoint, different data or a lost optimizer state raise the first losses. Where norms
are recorded they show it at once; where they are not, the loss is all there is.
"""

import math

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import median, sigma_around
from trimtab.core.signals import LOSS
from trimtab.detect.tools.rows import Seen

LOSSES_BEFORE, LOSSES_AFTER = 32, 8
"""Losses on either side whose medians are compared."""

MIN_SCALES, MIN_SHARE = 3.0, 0.01
"""How far above the loss must be: in deviations of one loss, and as a share of it. Source: the
guide of a large public run escalates at 1 %; the correct resumes of the lab stay under 1
deviation."""


class ResumeGap(Detector):
    """One finding for a resume after which the loss is higher."""

    name = "resume-gap"
    listens_to = KnownChange.RESUMED | KnownChange.CHANGED | KnownChange.WENT_BACK

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._after: list[float] | None = None
        """The losses since the resume, while they are being gathered."""

    def on_event(self, change: KnownChange) -> None:
        """Judge a resume, unless the run has changed or starts at an earlier step."""
        if change is not KnownChange.RESUMED:
            self._recent, self._after = [], None
        elif self._after is None and len(self._recent) == LOSSES_BEFORE:
            self._after = []

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        loss = record.signals.get(LOSS)
        if loss is None or not math.isfinite(loss):
            return []
        finding = self._judge(Seen(record.tick, record.step, loss))
        return [] if finding is None else [finding]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        column = block.column(LOSS)
        rows = np.flatnonzero(column.finite)
        findings = []
        gathered = 0 if self._after is None else LOSSES_AFTER - len(self._after)
        for row in rows[:gathered].tolist():
            finding = self._judge(Seen.at(block, row, column.values[row]))
            if finding is not None:
                findings.append(finding)
        rest = column.values[rows[gathered:][-LOSSES_BEFORE:]].tolist()
        self._recent = [*self._recent, *rest][-LOSSES_BEFORE:]
        return findings

    def _judge(self, seen: Seen) -> Finding | None:
        if self._after is None:
            self._recent = [*self._recent[1 - LOSSES_BEFORE :], seen.value]
            return None
        self._after.append(seen.value)
        if len(self._after) < LOSSES_AFTER:
            return None
        level = median(self._recent)
        scale = sigma_around(level, self._recent)
        gap = median(self._after) - level
        self._recent, self._after = [*self._recent, *self._after][-LOSSES_BEFORE:], None
        if not gap > max(MIN_SCALES * scale, MIN_SHARE * abs(level)):
            return None
        return Finding(
            detector=self.name,
            symptom=Symptom.RESUME_GAP,
            severity=Severity.ALARM,
            signal=LOSS,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            expected=level,
            facts={"gap": gap, "deviation": scale},
        )
