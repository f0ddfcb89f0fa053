"""What the nine tests for a loss spike ask for before a run is known, by how often it logs."""

import math
from dataclasses import dataclass

from trimtab.detect.baseline import WIDE_STRIDE

LENGTHS = (1, 2, 4, 8, 16, 32, 1, 2, 4)
"""Records that each test adds up."""
ROOTS = tuple(math.sqrt(length) for length in LENGTHS)
SUMS, JOINT_SUMS = 5, 2
JOINT = 6
"""The first of the tests that see loss and norm together."""

LEAST_RISE = (0.02,) + (0.012,) * SUMS + (0.006,) * (1 + JOINT_SUMS)
"""Rise in loss, as a share of it, under which nothing is a spike. Source: 0 to 1.2 % are equal on
public runs; nobody wants to be woken for less."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Prior and lowest threshold of each test."""

    priors: tuple[float, ...]
    lows: tuple[float, ...]

    def times(self, caution: float) -> "Limits":
        """The limits, each so many times higher."""
        priors = tuple(caution * prior for prior in self.priors)
        return Limits(priors, tuple(caution * low for low in self.lows))


def _limits(*, single: float, single_low: float, joint: float) -> Limits:
    sums, joint_sums = (6.0,) * SUMS, (5.5,) * JOINT_SUMS
    priors = (single, *sums, joint, *joint_sums)
    return Limits(priors, (single_low, *priors[1:]))


EVERY_STEP = _limits(single=30.0, single_low=30.0, joint=8.0)
"""In healthy every-step runs one loss reaches 29 scales (rank 0's own loss) and loss and norm
together 6.8: single records say little. Their sums stay under 6 and 5."""

CLOSE = _limits(single=7.0, single_low=7.0, joint=4.0)
"""Every 2 to 19 steps: single points are mostly batches, but a spike may have no more."""

WIDE = _limits(single=6.0, single_low=4.5, joint=4.0)
"""In healthy thinned logs one loss stays under 4 scales (a bimodal loss apart), loss and norm
together under 3.2. All of this was measured on the tuning runs."""


def limits_at(stride: float) -> Limits:
    """The limits for a log with so many steps from record to record."""
    if stride >= WIDE_STRIDE:
        return WIDE
    return EVERY_STEP if stride < 2 else CLOSE
