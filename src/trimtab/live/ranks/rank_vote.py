"""All ranks do the same with a step, whatever one of them computed or failed to compute.

One all_reduce of two whole numbers, by MAX. The first is the vote: OUT comes from a rank whose gate
has failed or whose guard is closed, and then the step is applied everywhere. The second holds a
loss and the rank that has it, so that the largest loss comes with its rank.
"""

import torch

ACCEPT, DISCARD, OUT = 0, 1, 2

_TOP = 0x7FFFFFFF
_RANK_BITS = 32


def with_rank(value: torch.Tensor, rank: int) -> torch.Tensor:
    """A float and its rank as one int64 that sorts as the float does; NaN above everything."""
    bits = value.view(torch.int32)
    # Floats of one sign sort as their bits do, the negative ones backwards.
    ordered = torch.where(bits < 0, bits ^ _TOP, bits)
    # Processors make NaNs with either sign; a negative one would sort lowest.
    ordered = torch.where(value.isnan(), _TOP, ordered)
    return (ordered.long() << _RANK_BITS) | rank


def value_and_rank(packed: torch.Tensor) -> torch.Tensor:
    """The float and its rank again, both as floats."""
    ordered = (packed >> _RANK_BITS).int()
    bits = torch.where(ordered < 0, ordered ^ _TOP, ordered)
    rank = packed & ((1 << _RANK_BITS) - 1)
    return torch.cat((bits.view(torch.float32), rank.float()))
