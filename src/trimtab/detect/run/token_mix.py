"""TokenMix: data that has become a different kind of text.

The share of distinct tokens in a batch does not depend on the model. When its means leave the range
that they had, the mix of sources has changed; an announced change restarts the range.
"""

from collections.abc import Iterator

import numpy as np

from trimtab.core.block import Block, FloatArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import UNIQUE_TOKEN_SHARE
from trimtab.detect.tools.range_test import OutOfRange, RangeSpec, RangeTest
from trimtab.detect.tools.rows import Seen

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
        return [] if found is None else [_finding(Seen(record.tick, record.step, value), found)]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        return list(self._judge(block))

    def _judge(self, block: Block) -> Iterator[Finding]:
        column = block.columns.get(UNIQUE_TOKEN_SHARE)
        if column is None:
            return
        with np.errstate(invalid="ignore"):
            good = column.present & (column.values >= 0) & (column.values <= 1)
        rows = np.flatnonzero(good)
        values = column.values[rows]
        ends = range(RECORDS_PER_MEAN - 1 - self._count, len(rows), RECORDS_PER_MEAN)
        means = []
        begin = 0
        for end in ends:
            means.append(_add(self._total, values[begin : end + 1]) / RECORDS_PER_MEAN)
            begin, self._count, self._total = end + 1, 0, 0.0
        self._count += len(rows) - begin
        self._total = _add(self._total, values[begin:])
        for at, found in self._range.update_many(np.array(means)):
            row = int(rows[ends[at]])
            yield _finding(Seen.at(block, row, column.values[row]), found)


def _add(total: float, values: FloatArray) -> float:
    """The total with each value added in order; the builtin `sum` rounds differently."""
    for value in values.tolist():
        total += value
    return total


def _finding(seen: Seen, found: OutOfRange) -> Finding:
    return Finding(
        detector=TokenMix.name,
        symptom=Symptom.TEXT_CHANGED,
        severity=Severity.ALARM,
        signal=UNIQUE_TOKEN_SHARE,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        facts={"mean": found.value, "least_before": found.low, "most_before": found.high},
    )
