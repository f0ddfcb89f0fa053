"""What ranks exchange during a check, so that all of them make the same passes.

A loss may communicate: a rank that makes one step more than the others would wait for them forever.
So whatever decides how many passes are made is decided from the values of all ranks, and ranks wait
for each other before each pass. A rank that fails takes part in the next exchange under a different
name, and the others give up what they do.
"""

from typing import Any

import torch.distributed as dist

from trimtab.checks.rule import NotMeasured


class RanksDiverged(NotMeasured):
    """The ranks are at different places."""


def num_ranks() -> int:
    """Return the number of ranks; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def exchange(place: str, value: Any) -> list[Any]:
    """Return the values of all ranks in order; raise RanksDiverged if one is at another place."""
    gathered = _gather(place, value)
    for rank, (other, _) in enumerate(gathered):
        if other != place:
            raise RanksDiverged(f"rank {rank} is at {other} while this one is at {place}")
    return [value for _, value in gathered]


def wait_for_ranks(place: str) -> None:
    while any(other != place for other, _ in _gather(place, None)):
        pass  # a rank was in another exchange, and learns by this one that it must come here


def _gather(place: str, value: Any) -> list[tuple[str, Any]]:
    if num_ranks() == 1:
        return [(place, value)]
    gathered: list[Any] = [None] * num_ranks()
    dist.all_gather_object(gathered, (place, value))
    return gathered
