"""RepeatedBatch: a batch that was served before.

The fingerprint of each batch is remembered for some thousand records. A second epoch repeats
batches too, but from the first one on and always at the same distance; a loader that is stuck or
rewound repeats from anywhere else.
"""

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import FINGERPRINT
from trimtab.detect.tools.rows import Seen

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
        finding = self._judge(Seen(record.tick, record.step, value))
        return [] if finding is None else [finding]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        column = block.columns.get(FINGERPRINT)
        if column is None:
            return []
        rows = np.flatnonzero(column.present & ~np.isnan(column.values))
        ticks, steps = block.tick[rows].tolist(), block.step[rows].tolist()
        seen = map(Seen, ticks, steps, column.values[rows].tolist())
        return [finding for finding in map(self._judge, seen) if finding is not None]

    def _judge(self, seen: Seen) -> Finding | None:
        here = self._count
        self._count += 1
        before = self._places.pop(seen.value, None)
        self._places[seen.value] = here
        if len(self._places) > BATCHES_REMEMBERED:
            del self._places[next(iter(self._places))]
        if before is None or self._is_next_epoch(before, here):
            return None
        distance = here - before
        if here - self._last > REPEAT_WINDOW or distance != self._distance:
            self._times = 0
        self._last, self._distance = here, distance
        self._times += 1
        if self._times > 2:
            return None
        severity = Severity.ALARM if self._times == 2 else Severity.WARN
        return _finding(seen, severity, distance)

    def _is_next_epoch(self, before: int, here: int) -> bool:
        distance = here - before
        if before == self._epoch_start and distance > 1:
            self._epoch_start, self._period = here, distance
        return distance == self._period


def _finding(seen: Seen, severity: Severity, distance: int) -> Finding:
    return Finding(
        detector=RepeatedBatch.name,
        symptom=Symptom.REPEATED_BATCH,
        severity=severity,
        signal=FINGERPRINT,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        facts={"records_back": float(distance)},
    )
