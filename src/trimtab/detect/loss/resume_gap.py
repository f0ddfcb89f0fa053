"""ResumeGap: whether the loss continues after a resume where it was before.

A run that was saved and loaded correctly continues as if nothing had happened. Weights of a
different checkpoint, different data or a lost optimizer state raise the first losses. Where norms
are recorded they show it at once; where they are not, the loss is all there is.
"""

import math

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import median, sigma_around
from trimtab.core.signals import LOSS

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
        loss = record.signals.get(LOSS, math.nan)
        if not math.isfinite(loss):
            return []
        if self._after is None:
            self._recent = [*self._recent[1 - LOSSES_BEFORE :], loss]
            return []
        self._after.append(loss)
        if len(self._after) < LOSSES_AFTER:
            return []
        level = median(self._recent)
        scale = sigma_around(level, self._recent)
        gap = median(self._after) - level
        self._recent, self._after = [*self._recent, *self._after][-LOSSES_BEFORE:], None
        if not gap > max(MIN_SCALES * scale, MIN_SHARE * abs(level)):
            return []
        facts = {"gap": gap, "deviation": scale}
        return [
            self.finding(
                record, Symptom.RESUME_GAP, Severity.ALARM, LOSS, expected=level, facts=facts
            )
        ]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows of the losses after a resume, and of the last ones, for the next."""
        rows = np.flatnonzero(block.column(LOSS).finite)
        num_wanted = 0 if self._after is None else LOSSES_AFTER - len(self._after)
        return np.concatenate((rows[:num_wanted], rows[num_wanted:][-LOSSES_BEFORE:]))
