"""Repeats: a batch that was served before.

The fingerprint of each batch is remembered for some thousand records. A second epoch repeats too,
from the first batch on and always at the same distance; that is told from a loader that is stuck or
rewound, which repeats from anywhere else.
"""

from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import FINGERPRINT
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.rows import Row, Seen

MEMORY = 4096
"""Batches that are remembered: 150 kB. Longer epochs are not seen to end."""

CLOSE = 64
"""Records within which a second repetition, from as far back, makes it an alarm, and after which it
is told again. A single one may be two equal checksums, which happens about once in a million
records; small batches of repetitive text may be equal now and then, but not at one distance."""


class Repeats:
    """A warning for the first repeated batch, an alarm for the second; then quiet until it ends."""

    name = "repeats"
    hears = Known.WENT_BACK

    def __init__(self) -> None:
        self._places: dict[float, int] = {}
        """Where each batch was last seen, the oldest first."""
        self._count = 0
        self._epoch_start = 0
        self._period = 0
        self._last, self._distance, self._times = -CLOSE - 1, 0, 0
        """Where a batch was last served again, from how far back, and how often in a row."""

    def hear(self, known: Known) -> None:
        """A new attempt serves its batches again, as it should."""
        self._places, self._epoch_start, self._period = {}, self._count, 0

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        value = row.signals.get(FINGERPRINT)
        if value is None or value != value:
            return []
        finding = self._judge(Seen(row.tick, row.step, value))
        return [] if finding is None else [finding]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        column = block.columns.get(FINGERPRINT)
        if column is None:
            return []
        rows = np.flatnonzero(column.present & ~np.isnan(column.values))
        ticks, steps = block.tick[rows].tolist(), block.step[rows].tolist()
        seen = map(Seen, ticks, steps, column.values[rows].tolist())
        return [finding for finding in map(self._judge, seen) if finding is not None]

    def state_dict(self) -> dict[str, Any]:
        """The batches that are remembered, and what is known of epochs and repetitions."""
        return {
            "places": [[value, place] for value, place in self._places.items()],
            "count": self._count,
            "epoch": [self._epoch_start, self._period],
            "repeated": [self._last, self._distance, self._times],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._places = dict(state["places"])
        self._count = int(state["count"])
        self._epoch_start, self._period = state["epoch"]
        self._last, self._distance, self._times = state["repeated"]

    def _judge(self, seen: Seen) -> Finding | None:
        here = self._count
        self._count += 1
        before = self._places.pop(seen.value, None)
        self._places[seen.value] = here
        if len(self._places) > MEMORY:
            del self._places[next(iter(self._places))]
        if before is None or self._is_next_epoch(before, here):
            return None
        distance = here - before
        if here - self._last > CLOSE or distance != self._distance:
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
        detector=Repeats.name,
        symptom=Symptom.REPEATED_BATCH,
        severity=severity,
        signal=FINGERPRINT,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        false_per_10k=FALSE_PER_10K.get(Repeats.name) if severity is Severity.ALARM else None,
        facts={"records_back": float(distance)},
    )
