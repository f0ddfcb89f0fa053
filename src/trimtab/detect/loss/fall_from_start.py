"""FallFromStart: whether the loss of a run from scratch has fallen at all."""

import math

from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import median
from trimtab.core.signals import LOSS
from trimtab.core.state import Stateful
from trimtab.detect.tools.rows import Seen

FIRST_LOSSES, LOSSES_PER_MEAN = 8, 32
"""Losses whose median is the start, and how many later ones are averaged."""

MIN_LOSSES, MIN_STEPS = 128, 2000
"""Losses and steps after which a loss must have fallen."""

MIN_FALL, HAS_FALLEN = 0.02, 0.05
"""Share of the start by which it must have fallen, and by which it has learned for good. Source: of
42 public tuning runs the slowest had fallen by 6 % after 64 records and 2,000 steps."""

FROM_SCRATCH_LOSS, MAX_FIRST_STEP = 4.0, 500
"""A run that starts at this loss or above, with its first record by this step, starts from scratch.
Chosen: 4 nats are a choice among 55; a fine-tuned model starts lower and may hardly fall."""


class FallFromStart(Stateful):
    """Judges the first losses of a run; it is over when they fell, or when they did not in time."""

    def __init__(self) -> None:
        self.is_over = False
        self._first: list[float] = []
        self._count = 0
        self._total, self._in_mean = 0.0, 0

    def stop(self) -> None:
        """Judge no further."""
        self.is_over = True
        self._first = []

    def update(self, seen: Seen) -> Finding | None:
        """Judge the next loss."""
        if self.is_over or not math.isfinite(seen.value):
            return None
        self._count += 1
        if self._count == 1 and seen.step > MAX_FIRST_STEP:
            self.stop()
            return None
        if self._count <= FIRST_LOSSES:
            self._first.append(seen.value)
            return None
        self._total += seen.value
        self._in_mean += 1
        if self._in_mean < LOSSES_PER_MEAN:
            return None
        mean, start = self._total / LOSSES_PER_MEAN, median(self._first)
        self._total, self._in_mean = 0.0, 0
        if start < FROM_SCRATCH_LOSS or mean < (1 - HAS_FALLEN) * start:
            self.stop()
        elif self._count >= MIN_LOSSES and seen.step >= MIN_STEPS and mean > (1 - MIN_FALL) * start:
            self.stop()
            return _finding(seen, start, mean)
        return None


def _finding(seen: Seen, start: float, mean: float) -> Finding:
    return Finding(
        detector="no-learning",
        symptom=Symptom.NO_LEARNING,
        severity=Severity.ALARM,
        signal=LOSS,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        expected=start,
        facts={"better_by": start - mean},
    )
