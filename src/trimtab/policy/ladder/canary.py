"""How often a healthy run is probed, so that the mean cost of it stays under a share of a step.

The batches of one step are run forward again, which takes a third of a step: the backward pass
takes twice as long as the forward pass. With the default share of 1 % that is every 34 steps.
"""

import math

CANARY_STEPS = 1
"""Steps whose batches make one reading. Many rough readings find a slow fault earlier than few fine
ones at the same cost, and a bad one is confirmed with more batches."""

_FORWARD_SHARE = 1 / 3


def canary_every(share: float) -> int | None:
    """Steps between two readings; None if there is no time for any."""
    if share <= 0:
        return None
    return math.ceil(CANARY_STEPS * _FORWARD_SHARE / share)
