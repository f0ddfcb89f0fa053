"""FallFromStart: whether the loss of a run from scratch has fallen at all."""

import math

from trimtab.core.robust import median
from trimtab.core.state import Stateful

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

    def update(self, loss: float, step: int) -> tuple[float, float] | None:
        """Judge the next loss; return the start and the mean now of a run that did not learn."""
        if self.is_over or not math.isfinite(loss):
            return None
        self._count += 1
        if self._count == 1 and step > MAX_FIRST_STEP:
            self.stop()
            return None
        if self._count <= FIRST_LOSSES:
            self._first.append(loss)
            return None
        self._total += loss
        self._in_mean += 1
        if self._in_mean < LOSSES_PER_MEAN:
            return None
        mean, start = self._total / LOSSES_PER_MEAN, median(self._first)
        self._total, self._in_mean = 0.0, 0
        if start < FROM_SCRATCH_LOSS or mean < (1 - HAS_FALLEN) * start:
            self.stop()
        elif self._count >= MIN_LOSSES and step >= MIN_STEPS and mean > (1 - MIN_FALL) * start:
            self.stop()
            return start, mean
        return None
