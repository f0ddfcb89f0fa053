"""What must go forward: counts, batches, and the learning rate of a decay.

CounterOrder     counts that fall, and a loss that is no longer recorded
RepeatedBatches  a batch that was served before
LrSchedule       a learning rate that rises again in the middle of its decay
"""

import numpy as np

from trimtab.core.block import NO_POSITION, Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import ADAM_STEP, DISCARDED, FINGERPRINT, LOSS, LR

# CounterOrder: counts that must not fall, and a loss that is no longer recorded.
#
# The step, the data position and the optimizer's count go forward within an attempt. A data
# position that returns to where the run started is the next epoch.

MAX_STANDING = 32
"""Records in which the optimizer's count may stand still while steps continue: a scaler that finds
its range skips up to a dozen."""

MIN_MISSING, MISSING_TIMES = 64, 8
"""Records without a loss, and times the longest such gap so far, after which it is missing."""

MIN_LOSSES = 8
"""Losses that must have been recorded before one can be missing."""

MAX_COUNT = 1e15
"""No optimizer counts this far."""


class CounterOrder(Detector):
    """One finding for each count that falls, and for a count or a loss that has stopped."""

    name = "counters"
    listens_to = KnownChange.WENT_BACK | KnownChange.RESTORED | KnownChange.CHANGED

    def __init__(self) -> None:
        self._step: int | None = None
        self._position: int | None = None
        self._first_position: int | None = None
        self._counted: float | None = None
        self._standing = 0
        self._num_losses, self._missing, self._longest = 0, 0, 0

    def on_event(self, change: KnownChange) -> None:
        """Forget the optimizer's count, which a change or an undo may set; the others too in a new
        attempt, which may start anywhere."""
        self._counted, self._standing = None, 0
        if KnownChange.WENT_BACK in change:
            self._step = self._position = None

    def update(self, record: Record) -> list[Finding]:
        findings = []
        step, self._step = self._step, record.step
        if step is not None and record.step < step:
            findings.append(self._back(record, Symptom.WENT_BACK, "step", record.step, step))
        position = record.data_position
        if position != NO_POSITION:
            last, self._position = self._position, position
            if self._first_position is None:
                self._first_position = position
            if last is not None and self._first_position < position < last:
                findings.append(
                    self._back(record, Symptom.DATA_BACK, "data_position", position, last)
                )
        findings += self._judge_count(record)
        return findings + self._judge_loss(record)

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the first and last row, and those with a count, if all else is in order."""
        is_in_order = (
            self._num_losses >= MIN_LOSSES
            and bool(block.column(LOSS).present.all())
            and not (np.diff(block.step) < 0).any()
            and not (np.diff(block.data_position) < 0).any()
            and (block.data_position[0] == NO_POSITION) == (block.data_position[-1] == NO_POSITION)
        )
        if not is_in_order:
            return np.arange(len(block))
        is_relevant = block.column(ADAM_STEP).present.copy()
        is_relevant[[0, -1]] = True  # what comes next is compared with the last record
        return np.flatnonzero(is_relevant)

    def _judge_count(self, record: Record) -> list[Finding]:
        count = record.signals.get(ADAM_STEP)
        is_discarded = record.signals.get(DISCARDED) == 1.0  # then the count stands, as it should
        if count is None or is_discarded or not abs(count) < MAX_COUNT:
            return []
        last, self._counted = self._counted, count
        if last is None or count > last:
            self._standing = 0
            return []
        if count < last:
            self._standing = 0
            return [self._back(record, Symptom.STATE_RESET, ADAM_STEP, count, last)]
        self._standing += 1
        if self._standing != MAX_STANDING:
            return []
        return [self._back(record, Symptom.FROZEN, ADAM_STEP, count, last)]

    def _judge_loss(self, record: Record) -> list[Finding]:
        if LOSS in record.signals:
            self._num_losses = min(self._num_losses + 1, MIN_LOSSES)
            self._longest, self._missing = max(self._longest, self._missing), 0
            return []
        self._missing += 1
        max_missing = max(MIN_MISSING, MISSING_TIMES * self._longest)
        if self._num_losses < MIN_LOSSES or self._missing != max_missing:
            return []
        missing = float(self._missing)
        return [self.finding(record, Symptom.MISSING_LOSS, Severity.ALARM, LOSS, value=missing)]

    def _back(
        self, record: Record, symptom: Symptom, signal: str, value: float, last: float
    ) -> Finding:
        """Return the finding for a count that is not beyond the last one."""
        # A step that falls is mostly a logger with several writers.
        severity = Severity.WARN if symptom is Symptom.WENT_BACK else Severity.ALARM
        return self.finding(
            record, symptom, severity, signal, value=float(value), expected=float(last)
        )


# RepeatedBatches: a batch that was served before.
#
# The fingerprint of each batch is remembered for some thousand records. A second epoch repeats
# batches too, but from the first one on and always at the same distance; a loader that is stuck or
# rewound repeats from anywhere else.

BATCHES_REMEMBERED = 4096
"""Batches that are remembered: 150 kB. The end of a longer epoch is not seen."""

REPEAT_WINDOW = 64
"""Records within which a second repetition from the same distance is an alarm, and after which a
repetition is reported again. A single one may be two equal checksums, which happens about once in a
million records; small batches of repetitive text may be equal now and then, but not at one
distance."""


class RepeatedBatches(Detector):
    """A warning for the first repeated batch, an alarm for the second; then quiet until it ends."""

    name = "repeated-batch"
    needs = FINGERPRINT
    listens_to = KnownChange.WENT_BACK

    def __init__(self) -> None:
        self._places: dict[float, int] = {}
        """Where each batch was last seen, oldest first."""
        self._count = 0
        self._epoch_start = 0
        self._period = 0
        self._last, self._distance, self._times = -REPEAT_WINDOW - 1, 0, 0
        """Where a batch was last repeated, from how far back, and how often in a row."""

    def on_event(self, change: KnownChange) -> None:
        """Forget the batches: a new attempt serves them again, as it should."""
        self._places, self._epoch_start, self._period = {}, self._count, 0

    def update(self, record: Record) -> list[Finding]:
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

    def _is_next_epoch(self, before: int, here: int) -> bool:
        distance = here - before
        if before == self._epoch_start and distance > 1:
            self._epoch_start, self._period = here, distance
        return distance == self._period


# LrSchedule: a learning rate that rises again in the middle of its decay.
#
# Schedules rise once, stay, and fall, or fall in steps; cosines with restarts jump up, which is a
# different finding. A rate that has been falling and then climbs, record by record, has the wrong
# sign or repeats its warm-up by mistake.

ABOVE = 1.01
"""Times the highest rate so far that a rise must exceed: a rate that returns to where it was is a
schedule with restarts or cycles, which the user has chosen."""

FALLS, RISES = 32, 8
"""Falls in a row that make a decay, and rises in a row after them that are not part of it. Equal
rates count as neither. Chosen: printed rates are rounded, so one or two rises may be rounding."""


class LrSchedule(Detector):
    """One finding for a run whose rate rises in its decay; cyclic schedules are reported once."""

    name = "lr-schedule"
    listens_to = KnownChange.RESUMED | KnownChange.WENT_BACK | KnownChange.CHANGED

    def __init__(self) -> None:
        self._last: float | None = None
        self._falls, self._rises = 0, 0
        self._highest = 0.0
        """Before the last fall."""
        self._is_reported = False

    def on_event(self, change: KnownChange) -> None:
        """Forget the rate: a resume or a change may bring a new warm-up."""
        self._last, self._falls, self._rises = None, 0, 0

    def update(self, record: Record) -> list[Finding]:
        value = record.signals.get(LR)
        if value is None or value != value:
            return []
        last, self._last = self._last, value
        if last is None or value == last:
            return []
        if value < last:
            self._highest = max(self._highest, last)
            if self._rises >= RISES:
                self._falls = 0
            self._falls, self._rises = min(self._falls + 1, FALLS), 0
            return []
        self._rises = min(self._rises + 1, RISES)
        if self._is_reported or self._falls < FALLS or self._rises < RISES:
            return []
        if value <= ABOVE * self._highest:
            return []
        self._is_reported = True
        facts = {"rises": float(RISES)}
        return [self.finding(record, Symptom.LR_RISING, Severity.ALARM, LR, facts=facts)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a rate; of a rate that moves one way only, the first and last."""
        column = block.column(LR)
        rows = np.flatnonzero(column.present & ~np.isnan(column.values))
        if self._is_reported or not len(rows):
            return rows[:0]
        values = column.values[rows]
        before = np.concatenate(([values[0] if self._last is None else self._last], values[:-1]))
        rose, fell = values > before, values < before
        if rose.any() and (fell.any() or self._falls >= FALLS):
            return rows
        # No more moves are counted than these; the next rate is compared with the last one.
        return np.union1d(rows[np.flatnonzero(rose | fell)[:FALLS]], rows[[0, -1]])
