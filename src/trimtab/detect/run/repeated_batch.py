"""RepeatedBatch: a batch that was served before.

The fingerprint of each batch is remembered for some thousand records. A second epoch repeats
batches too, but from the first one on and always at the same distance; a loader that is stuck or
rewound repeats from anywhere else.
"""

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import FINGERPRINT

BATCHES_REMEMBERED = 4096
"""Batches that are remembered: 150 kB. The end of a longer epoch is not seen."""

REPEAT_WINDOW = 64
"""Records within which a second repetition from the same distance is an alarm, and after which a
repetition is reported again. A single one may be two equal checksums, which happens about once in a
million records; small batches of repetitive text may be equal now and then, but not at one
distance."""


class RepeatedBatch(Detector):
    """A warning for the first repeated batch, an alarm for the second; then quiet until it ends."""

    name = "repeated-batch"
    listens_to = KnownChange.WENT_BACK | KnownChange.SKIPPED_DATA

    def __init__(self) -> None:
        self._places: dict[float, int] = {}
        """Where each batch was last seen, oldest first."""
        self._count = 0
        self._epoch_start = 0
        self._period = 0
        self._last, self._distance, self._times = -REPEAT_WINDOW - 1, 0, 0
        """Where a batch was last repeated, from how far back, and how often in a row."""

    def on_event(self, change: KnownChange) -> None:
        """A new attempt serves its batches again, as it should; after a skip, from elsewhere."""
        self._places, self._epoch_start, self._period = {}, self._count, 0

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        value = record.signals.get(FINGERPRINT)
        if value is None or value != value:
            return []
        here = self._count
        self._count += 1
        before = self._places.pop(value, None)
        self._places[value] = here
        if len(self._places) > BATCHES_REMEMBERED:
            del self._places[next(iter(self._places))]
        if before is None or self._is_next_epoch(before, here):
            return []
        distance = here - before
        if here - self._last > REPEAT_WINDOW or distance != self._distance:
            self._times = 0
        self._last, self._distance = here, distance
        self._times += 1
        if self._times > 2:
            return []
        severity = Severity.ALARM if self._times == 2 else Severity.WARN
        facts = {"records_back": float(distance)}
        return [self.finding(record, Symptom.REPEATED_BATCH, severity, FINGERPRINT, facts=facts)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a fingerprint."""
        return np.flatnonzero(block.column(FINGERPRINT).present)

    def _is_next_epoch(self, before: int, here: int) -> bool:
        distance = here - before
        if before == self._epoch_start and distance > 1:
            self._epoch_start, self._period = here, distance
        return distance == self._period
