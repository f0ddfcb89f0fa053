"""RankSync: the only collectives of a step, in every `optimizer.step()`, recorded or not.

One all-reduce (SUM) of a vector that has the same length at every step and on every rank, and, if a
gate decides, a second one (MAX) of two whole numbers. The first is the vote: OUT comes from a rank
whose gate has failed or whose guard is closed, and then all ranks apply the step. The second is the
largest loss of any rank, packed with that rank.

The sum begins with a count of ranks that want to leave: a rank whose guard failed or was closed
keeps coming here with its bit set, every rank reads it `lag` exchanges later, and all leave at the
same one. Nothing in here is shielded: a rank that does not come keeps the others waiting.
"""

import torch
import torch.distributed as dist

from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.shield import log

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


class RankSync:
    """Adds vectors up over ranks and counts votes."""

    def __init__(self, group: RankGroup, device: torch.device) -> None:
        self.group = group
        self.has_left = False
        """Set when all ranks have agreed to meet no more, or when they cannot."""
        self._is_leaving = torch.zeros(1, dtype=torch.float32, device=device)
        self._out = torch.full((1,), OUT, dtype=torch.int64, device=device)
        self._no_loss = torch.full((1,), -torch.inf, dtype=torch.float32, device=device)
        self._largest: torch.Tensor | None = None

    @property
    def world(self) -> int:
        """How many ranks meet."""
        return self.group.world

    @property
    def largest_loss(self) -> torch.Tensor | None:
        """The largest loss of any rank and that rank, as of the last vote; None without one."""
        return None if self._largest is None else value_and_rank(self._largest)

    def leave(self) -> None:
        """Ask to part: at once if there is one rank, else with the next meetings."""
        self._is_leaving.fill_(1.0)
        self.has_left = self.has_left or self.world == 1

    def sum(self, *numbers: torch.Tensor, is_alone: bool = False) -> torch.Tensor:
        """Add numbers up over ranks; the count of ranks that leave is put in front."""
        total = torch.cat((self._is_leaving, *numbers))
        if self.world > 1 and not is_alone:
            self._reduce(total, dist.ReduceOp.SUM)
        return total

    def vote(self, discards: torch.Tensor | None, loss: torch.Tensor | None) -> torch.Tensor:
        """Vote whether to discard a step, None if this rank's gate failed; returns the outcome."""
        vote = self._out if discards is None else discards
        if self.world == 1:
            return vote
        packed = with_rank(self._no_loss if loss is None else loss.view(1), self.group.rank)
        both = torch.cat((vote.long(), packed))
        self._reduce(both, dist.ReduceOp.MAX)
        self._largest = both[1:]
        return both[:1]

    def see(self, num_leaving: float) -> None:
        """A sum has reached the host: part if any rank wanted to."""
        self.has_left = self.has_left or num_leaving > 0

    def _reduce(self, tensor: torch.Tensor, how: "dist.ReduceOp.RedOpType") -> None:
        if self.has_left:
            return
        try:
            dist.all_reduce(tensor, how, group=self.group.handle)
        except RuntimeError as error:  # a rank is gone, or did not come in time
            self.has_left = True
            log.error(
                "trimtab: the ranks could not meet (%s); this rank continues without trimtab", error
            )
