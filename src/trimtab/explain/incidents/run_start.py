"""RunStart: how a run began, so that a restart is recognised.

A restart from new weights looks like a blow-up at first: the loss jumps to where it began. Then it
falls as it did then. A run that blew up stays, or comes back to the level before.
"""

import math
from collections.abc import Sequence

from trimtab.core.incidents import Moment
from trimtab.core.state import Stateful

MAX_RECORDS = 64
"""Records in which the loss must have fallen clearly for a restart to be recognised later."""

CLEAR_FALL = 0.8
"""A loss at this share of the first one has fallen clearly."""

LIKENESS = 0.1
"""The share by which losses of a restart may differ from those of the start. Chosen: the restarts
of a public run differ from its start by 1 to 2 %."""


class RunStart(Stateful):
    """The first loss of a run, and when it had fallen clearly."""

    def __init__(self) -> None:
        self.is_known = False
        """Whether nothing more is to be learned."""
        self.records = 0
        """Records from the first loss to the one that had fallen clearly; 0 if it did not."""
        self._num_seen = 0
        self._first = self._fallen = math.nan

    def see(self, moment: Moment) -> None:
        """Add the next loss of the run."""
        if self.is_known or moment.loss is None or not math.isfinite(moment.loss):
            return
        if not self._num_seen:
            self._first = moment.loss
        elif 0 < moment.loss <= CLEAR_FALL * self._first:
            self.records, self._fallen = self._num_seen, moment.loss
        self._num_seen += 1
        self.is_known = self.records > 0 or self._num_seen > MAX_RECORDS

    def is_repeated_by(self, losses: Sequence[float]) -> bool:
        """Whether losses from a peak on, one more than `records`, are like those of the start."""
        if not self.records or len(losses) <= self.records:
            return False
        return _is_like(losses[0], self._first) and _is_like(losses[self.records], self._fallen)


def _is_like(loss: float, known: float) -> bool:
    return abs(loss - known) <= LIKENESS * abs(known)
