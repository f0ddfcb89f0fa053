"""How often a healthy run is probed, so that the mean cost of it stays under a share of a step.

The batches of one step are run forward again, which takes a third of a step: the backward pass
takes twice as long as the forward pass. With the default share of 0.5 % that is every 67 steps, and
twice as often in the first 1,000: what is usual must be known early.
"""

import math

CANARY_STEPS = 1
"""Steps whose batches make one reading. Many rough readings find a slow fault earlier than few fine
ones at the same cost, and a bad one is confirmed with more batches."""

_FORWARD_SHARE = 1 / 3

YOUNG_BOUNDARIES, YOUNG_FACTOR = 1000, 2


def canary_every(share: float, boundary: int) -> int | None:
    """Steps between two readings at a boundary of the run; None if there is no time for any."""
    if share <= 0:
        return None
    if boundary <= YOUNG_BOUNDARIES:
        share *= YOUNG_FACTOR
    return math.ceil(CANARY_STEPS * _FORWARD_SHARE / share)
