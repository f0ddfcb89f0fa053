"""AttentionLogits: attention logits beyond what softmax can use.

The limits are absolute, so this also finds a run that is wrong from its first step: a learning rate
that is far too high shows here long before it shows in the loss.
"""

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom

MAX_ATTENTION_LOGIT = "max_attention_logit"

LEVELS = {Severity.WARN: 50.0, Severity.ALARM: 100.0}
"""Source: published runs; past 50 a head attends to one token only, past 100 models were lost.
Healthy runs of the lab stay under 20."""

MIN_RECORDS = 8
"""Records in a row that must be over the level: a single batch may be."""


class AttentionLogits(Detector):
    """A warning and an alarm, each once in a run."""

    name = "attention-logits"

    def __init__(self) -> None:
        self._num_over = [0] * len(LEVELS)
        """Records in a row over each level; negative once it is reported."""

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        value = record.signals.get(MAX_ATTENTION_LOGIT)
        findings: list[Finding] = []
        if value is None:
            return findings
        for at, (severity, level) in enumerate(LEVELS.items()):
            num_over = self._num_over[at]
            if num_over < 0:
                continue
            self._num_over[at] = num_over + 1 if value > level else 0
            if self._num_over[at] == MIN_RECORDS:
                self._num_over[at] = -1
                findings.append(
                    self.finding(
                        record, Symptom.LARGE_LOGITS, severity, MAX_ATTENTION_LOGIT, limit=level
                    )
                )
        return findings

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows in which the logits were measured."""
        return np.flatnonzero(block.column(MAX_ATTENTION_LOGIT).present)
