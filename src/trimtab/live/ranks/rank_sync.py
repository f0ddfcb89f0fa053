"""RankSync: the one place where ranks meet, in every `optimizer.step()`, recorded or not.

A meeting is one all_reduce (SUM) of a vector that has the same length at every step and on every
rank, and, if a gate decides, a second one (MAX) of two whole numbers. The sum begins with a count
of ranks that want to leave: a rank whose guard failed or was closed keeps coming here with its
bit set, every rank reads it `lag` meetings later, and all part at the same one.

Nothing in here is shielded: a rank that does not come keeps the others waiting.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.ranks.rank_vote import OUT, value_and_rank, with_rank
from trimtab.live.shield import log


class RankSync:
    """Adds vectors up over ranks and counts votes."""

    def __init__(self, group: RankGroup, device: torch.device) -> None:
        self.group = group
        self.has_parted = False
        """Set when all ranks have agreed to meet no more, or when they cannot."""
        self._is_leaving = torch.zeros(1, dtype=torch.float32, device=device)
        self._out = torch.full((1,), OUT, dtype=torch.int64, device=device)
        self._no_loss = torch.full((1,), -torch.inf, dtype=torch.float32, device=device)
        self._largest: torch.Tensor | None = None
        self.extra: torch.Tensor | None = None
        """Further whole numbers of this rank that ride along with the vote."""
        self.agreed: torch.Tensor | None = None
        """The largest of each over all ranks, as of the last vote."""

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
        self.has_parted = self.has_parted or self.world == 1

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
        parts = (vote.long(), packed) if self.extra is None else (vote.long(), packed, self.extra)
        both = torch.cat(parts)
        self._reduce(both, dist.ReduceOp.MAX)
        self._largest, self.agreed = both[1:2], both[2:]
        return both[:1]

    def agree(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each number over all ranks, now; all ranks must come here together."""
        both = torch.tensor(numbers, dtype=torch.int64, device=self._out.device)
        if self.world > 1:
            self._reduce(both, dist.ReduceOp.MAX)
        largest: list[int] = both.tolist()
        return largest

    def see(self, num_leaving: float) -> None:
        """A sum has reached the host: part if any rank wanted to."""
        self.has_parted = self.has_parted or num_leaving > 0

    def _reduce(self, tensor: torch.Tensor, how: "dist.ReduceOp.RedOpType") -> None:
        if self.has_parted:
            return
        try:
            dist.all_reduce(tensor, how, group=self.group.handle)
        except RuntimeError as error:  # a rank is gone, or did not come in time
            self.has_parted = True
            log.error(
                "trimtab: the ranks could not meet (%s); this rank continues without trimtab", error
            )
