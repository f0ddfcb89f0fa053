"""How often a healthy run is probed, so that the mean cost of it stays under a share of a step.

The batches of two steps are run forward again, which takes less than a step: a backward pass takes
up to twice as long as a forward pass. With the default share of 0.46 % that is every 183 steps, and
every 52 in the first 1,000: what is usual must be known early, and most runs fail early.
"""

import math

CANARY_STEPS = 2
"""Steps whose batches are probed: one that was probed before, and a new one."""

_FORWARD_SHARE = 0.42
"""Of a step. Source: measured at 10M parameters; 0.34 at 50M (`scripts/bench recover.cost`)."""

YOUNG_BOUNDARIES, YOUNG_FACTOR = 1000, 3.52
"""Chosen: with 52 steps between readings, what begins right after one shows within 64."""

CANARY_SHARE = 0.0046
"""Share of the training time that probes of a healthy run may take; 3.5 times that in the first
1,000 steps. Chosen: with less, batches of the last reading are older than the oldest snapshot."""


def canary_every(share: float, boundary: int) -> int | None:
    """Steps between two readings at a boundary of the run; None if there is no time for any."""
    if share <= 0:
        return None
    if boundary <= YOUNG_BOUNDARIES:
        share *= YOUNG_FACTOR
    return math.ceil(CANARY_STEPS * _FORWARD_SHARE / share)


WATCH_READINGS, WATCH_EVERY = 4, 16
"""Readings after a data source has come that is new to the run, and the steps between them. Chosen:
they cover 64 steps, and the second one is compared with weights that had hardly seen the source."""


def watch_pause(share: float) -> int | None:
    """Steps between two such series, so that they cost as much as the canary itself at most; None
    if there is no time for any."""
    if share <= 0:
        return None
    return math.ceil(WATCH_READINGS * CANARY_STEPS * _FORWARD_SHARE / share)
