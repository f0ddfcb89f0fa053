"""Ballot: all ranks do the same with a step, whatever one of them computed or failed to compute.

One all_reduce of two whole numbers, by MAX. The first is the vote: whoever says OUT has a guard
that failed, and then the step is taken everywhere. The second holds a loss and the rank that has
it, so that the largest loss comes with its owner.
"""

import torch
import torch.distributed as dist

ACCEPT, DISCARD, OUT = 0, 1, 2

_TOP = 0x7FFFFFFF
_RANK_BITS = 32


class Ballot:
    """Counts the votes of all ranks."""

    def __init__(self, device: torch.device) -> None:
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._out = torch.full((1,), OUT, device=device)
        self._no_loss = torch.full((1,), -torch.inf, device=device)
        self._largest: torch.Tensor | None = None
        """The largest loss of the last vote with its owner."""

    @property
    def extreme(self) -> torch.Tensor | None:
        """The largest loss of any rank and whose it is, as two floats; None if there is but one."""
        return None if self._largest is None else value_and_rank(self._largest)

    def cast(self, discards: torch.Tensor | None, loss: torch.Tensor | None) -> torch.Tensor:
        """Vote whether to discard the step, None if this rank has failed; returns the outcome."""
        vote = self._out if discards is None else discards
        if self.world == 1:
            return vote
        owned = with_rank(self._no_loss if loss is None else loss.view(1), self._rank)
        both = torch.cat((vote.long(), owned))
        dist.all_reduce(both, dist.ReduceOp.MAX)
        self._largest = both[1:]
        return both[:1]


def with_rank(value: torch.Tensor, rank: int) -> torch.Tensor:
    """A float and its owner as one int64 that sorts as the float does; NaN above everything."""
    bits = value.view(torch.int32)
    # Floats of one sign sort as their bits do, the negative ones backwards.
    ordered = torch.where(bits < 0, bits ^ _TOP, bits)
    # Processors make NaNs with either sign; a negative one would sort lowest.
    ordered = torch.where(value.isnan(), _TOP, ordered)
    return (ordered.long() << _RANK_BITS) | rank


def value_and_rank(owned: torch.Tensor) -> torch.Tensor:
    """The float and its owner again, both as floats."""
    ordered = (owned >> _RANK_BITS).int()
    bits = torch.where(ordered < 0, ordered ^ _TOP, ordered)
    rank = owned & ((1 << _RANK_BITS) - 1)
    return torch.cat((bits.view(torch.float32), rank.float()))
