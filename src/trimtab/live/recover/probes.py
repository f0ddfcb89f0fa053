"""ProbeSchedule: one batch that a snapshot scores now and then, for harm under a loss's noise.

From batch to batch a loss varies by more than some harm costs, the gap of two states on the same
batch by far less: the noise of the data is in both.

    probe    after `recover.trial_every` updates, the gap of one batch, against a snapshot from
             before the last probe, so that no time between two probes is left out
    trial    if it is above 0, above all of the last 16, and 4 sigmas above the median of the last
             8; the older state must then lead by as much in the mean of 8 batches, and is proposed
             at most

Every batch that is scored puts the next probe off, so the cost is at most two forward passes and
two copies of the weights in `trial_every` updates. Every number is a sum over ranks.
"""

import math
from collections import deque

from trimtab.core.robust import jump_sigma, median
from trimtab.live.recover.trial_rule import OPEN_SIGMAS

NUM_USUAL, LEAST_USUAL = 16, 8
"""Gaps of the past that are usual, and how many must be known. Chosen: the deviation of fewer is
often near 0."""


class ProbeSchedule:
    """When a batch is scored, and whether its gap is unusual."""

    def __init__(self, every: int) -> None:
        self.every = every
        """Updates from one probe to the next; 0 for none."""
        self._next = every
        self.last = 0
        """The update of the last batch that was scored."""
        self.gaps: deque[float] = deque(maxlen=NUM_USUAL)
        """Those of the last probes that opened no trial."""

    def is_due(self, update: int) -> bool:
        return self.every > 0 and self._next <= update

    @property
    def limit(self) -> float:
        """The gap above which harm is likely; infinite until the usual ones are known."""
        if len(self.gaps) < LEAST_USUAL:
            return math.inf
        recent = list(self.gaps)[-LEAST_USUAL:]  # they rise in a run that learns less and less
        return max(median(recent) + OPEN_SIGMAS * jump_sigma(recent), *self.gaps, 0.0)

    def end(self, update: int, num_scored: int) -> None:
        """So many batches were scored, the last one at this update."""
        self.last, self._next = update, update + self.every * num_scored
