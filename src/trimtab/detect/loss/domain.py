"""Domain: the scale on which a loss is compared with its past.

A loss that is never negative is compared by its logarithm. The noise of a loss grows and shrinks
with the loss: that of a classifier falls from 2 to 0.001, and its batches still differ by the same
factors. On a logarithmic scale such noise is even, and a long tail above a level near 0 is none.
From its first negative value on a loss is compared as it is.
"""

import math

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.robust import TINY
from trimtab.detect.tools.baseline import BaselineSpec

SMALLEST, LARGEST = 1e-9, 1e100
"""Losses under the first count as it: a hinge or triplet loss is exactly 0 in many batches. Losses
beyond the second count as it: their differences must not overflow."""


class Domain:
    """A scale, and the way back from it."""

    def __init__(self, *, is_log: bool) -> None:
        self.is_log = is_log
        # Floor of the scale: 0.2 % of the loss; between 0.05 and 0.5 % the results are equal.
        self.baseline = BaselineSpec(
            falls=True,
            relative_floor=0.0 if is_log else 0.002,
            absolute_floor=0.002 if is_log else 0.0,
        )

    def of(self, loss: float) -> float:
        """Return a loss on this scale."""
        if self.is_log:
            return math.log(min(max(loss, SMALLEST), LARGEST))
        return min(max(loss, -LARGEST), LARGEST)

    def of_many(self, losses: FloatArray) -> FloatArray:
        """Return losses on this scale, as `of` gives them."""
        if not self.is_log:
            return np.clip(losses, -LARGEST, LARGEST)
        # numpy's logarithm may round differently.
        clipped = np.clip(losses, SMALLEST, LARGEST).tolist()
        return np.fromiter(map(math.log, clipped), dtype=np.float64, count=len(clipped))

    def back(self, value: float) -> float:
        """Return the loss of a value on this scale."""
        return math.exp(min(value, 700.0)) if self.is_log else value

    def share(self, rise: float, level: float) -> float:
        """Return a rise as a share of the level."""
        return rise if self.is_log else rise / max(abs(level), TINY)


POSITIVE, SIGNED = Domain(is_log=True), Domain(is_log=False)
