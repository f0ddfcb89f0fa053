"""Logits: attention logits beyond what softmax can use.

This needs no past to compare with, so it also sees a run that is wrong from its first step on: a
rate that is far too high shows here long before the loss says anything.
"""

from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.rows import Row, Seen
from trimtab.detect.tools.streaks import reached

MAX_ATTENTION_LOGIT = "max_attention_logit"

LEVELS = {Severity.WARN: 50.0, Severity.ALARM: 100.0}
"""Source: published runs; past 50 a head looks at one token only, past 100 models were lost.
Healthy runs of the lab stay under 20."""

IN_A_ROW = 8
"""Records in a row that must be over: a single batch may be."""


class Logits:
    """A warning and an alarm, each once in a run."""

    name = "logits"
    hears = Known.NOTHING

    def __init__(self) -> None:
        self._over = dict.fromkeys(LEVELS, 0)
        """Records in a row over each level; negative once it was told."""

    def hear(self, known: Known) -> None:
        """Nothing excuses them."""

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        value = row.signals.get(MAX_ATTENTION_LOGIT)
        findings: list[Finding] = []
        if value is None:
            return findings
        for severity, level in LEVELS.items():
            over = self._over[severity]
            if over < 0:
                continue
            self._over[severity] = over + 1 if value > level else 0
            if self._over[severity] == IN_A_ROW:
                self._over[severity] = -1
                findings.append(_finding(severity, Seen(row.tick, row.step, value)))
        return findings

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        column = block.columns.get(MAX_ATTENTION_LOGIT)
        if column is None:
            return []
        findings = []
        rows = np.flatnonzero(column.present)
        for severity, level in LEVELS.items():
            over = self._over[severity]
            if over < 0:
                continue
            places, self._over[severity] = reached(column.values[rows] > level, over, IN_A_ROW)
            for row in rows[places[:1]].tolist():
                self._over[severity] = -1
                findings.append(_finding(severity, Seen.at(block, row, column.values[row])))
        return sorted(findings, key=lambda finding: finding.tick)

    def state_dict(self) -> dict[str, Any]:
        """How long it has been over each level."""
        return {"over": [self._over[severity] for severity in LEVELS]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._over = dict(zip(LEVELS, state["over"], strict=True))


def _finding(severity: Severity, seen: Seen) -> Finding:
    return Finding(
        detector=Logits.name,
        symptom=Symptom.LARGE_LOGITS,
        severity=severity,
        signal=MAX_ATTENTION_LOGIT,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        limit=LEVELS[severity],
        false_per_10k=FALSE_PER_10K.get(Logits.name) if severity is Severity.ALARM else None,
    )
