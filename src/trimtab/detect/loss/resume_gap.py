"""Resume: whether the loss goes on where it was before a resume.

A run that was saved and loaded right continues as if nothing had happened. Weights of another
checkpoint, data of another kind or a lost state lift the first losses; where norms are recorded
they say so at once, where they are not this is what is left.
"""

import math
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.expectation import median
from trimtab.detect.tools.rows import Row, Seen

BEFORE, AFTER = 32, 8
"""Losses on either side that are compared, by their medians."""

SCALES, SHARE = 3.0, 0.01
"""How far above it must be: in deviations of one loss, and as a share of it. Source: the guide of a
large public run escalates at 1 %; the right resumes of the lab stay under 1 deviation."""


class Resume:
    """One finding for a resume after which the loss is higher."""

    name = "resume"
    hears = Known.RESUMED | Known.CHANGED | Known.WENT_BACK

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._after: list[float] | None = None
        """The losses since the resume, while they are being gathered."""

    def hear(self, known: Known) -> None:
        """A resume is judged, unless the run has changed or begins at an earlier step."""
        if known is not Known.RESUMED:
            self._recent, self._after = [], None
        elif self._after is None and len(self._recent) == BEFORE:
            self._after = []

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        loss = row.signals.get(LOSS)
        if loss is None or not math.isfinite(loss):
            return []
        finding = self._judge(Seen(row.tick, row.step, loss))
        return [] if finding is None else [finding]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        column = block.column(LOSS)
        rows = np.flatnonzero(column.finite)
        findings = []
        gathered = 0 if self._after is None else AFTER - len(self._after)
        for row in rows[:gathered].tolist():
            finding = self._judge(Seen.at(block, row, column.values[row]))
            if finding is not None:
                findings.append(finding)
        rest = column.values[rows[gathered:][-BEFORE:]].tolist()
        self._recent = [*self._recent, *rest][-BEFORE:]
        return findings

    def state_dict(self) -> dict[str, Any]:
        """The losses on both sides."""
        return {"recent": list(self._recent), "after": self._after}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._recent, self._after = list(state["recent"]), state["after"]

    def _judge(self, seen: Seen) -> Finding | None:
        if self._after is None:
            self._recent = [*self._recent[1 - BEFORE :], seen.value]
            return None
        self._after.append(seen.value)
        if len(self._after) < AFTER:
            return None
        level = median(self._recent)
        scale = 1.4826 * median([abs(loss - level) for loss in self._recent])
        gap = median(self._after) - level
        self._recent, self._after = [*self._recent, *self._after][-BEFORE:], None
        if not gap > max(SCALES * scale, SHARE * abs(level)):
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
            false_per_10k=FALSE_PER_10K.get(self.name),
            facts={"gap": gap, "deviation": scale},
        )
