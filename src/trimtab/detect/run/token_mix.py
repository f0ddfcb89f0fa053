"""TokenMix: data that has become a different kind of text.

The share of distinct tokens in a batch does not depend on the model. When its means leave the range
that they had, the mix of sources has changed; an announced change restarts the range.
"""

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import UNIQUE_TOKEN_SHARE
from trimtab.detect.tools.range_test import RangeSpec, RangeTest

RECORDS_PER_MEAN = 8
"""Records that are averaged."""

RANGE = RangeSpec(before=24, newest=6)
"""Any distance is enough: in shuffled data that happens by chance once in 2.4 million records."""


class TokenMix(Detector):
    """One finding when the mix of tokens has changed."""

    name = "token-mix"
    listens_to = KnownChange.CHANGED
    skips_odd_batches = True

    def __init__(self) -> None:
        self._range = RangeTest(RANGE)
        self._count, self._total = 0, 0.0

    def on_event(self, change: KnownChange) -> None:
        """A planned change of the mix or of the batch."""
        self._range.restart()
        self._count, self._total = 0, 0.0

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        value = record.signals.get(UNIQUE_TOKEN_SHARE)
        if value is None or not 0.0 <= value <= 1.0:
            return []
        self._count += 1
        self._total += value
        if self._count < RECORDS_PER_MEAN:
            return []
        found = self._range.update(self._total / RECORDS_PER_MEAN)
        self._count, self._total = 0, 0.0
        if found is None:
            return []
        facts = {"mean": found.value, "least_before": found.low, "most_before": found.high}
        return [
            self.finding(
                record, Symptom.TEXT_CHANGED, Severity.ALARM, UNIQUE_TOKEN_SHARE, facts=facts
            )
        ]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows in which tokens were counted."""
        return np.flatnonzero(block.column(UNIQUE_TOKEN_SHARE).present)
