"""What ranks exchange in an experiment: findings, local gradient norms, whole batches.

All ranks come here together, because they make the same passes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from trimtab.live.ranks.rank_group import RankGroup
from trimtab.probes.passes import StepResult


def gather(group: RankGroup, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank has found, with its rank; nothing from a rank that has found nothing."""
    local = mine | {"rank": group.rank} if mine else mine
    if group.world == 1:
        return [local]
    parts: list[dict[str, Any]] = [{} for _ in range(group.world)]
    dist.all_gather_object(parts, local, group=group.handle)
    return parts


def with_rank_grads(
    group: RankGroup, steps: Sequence[StepResult], mine: Mapping[int, float]
) -> tuple[StepResult, ...]:
    """The steps with each rank's own gradient norm, where all ranks have measured it."""
    if group.world == 1:
        return tuple(steps)
    parts: list[Mapping[int, float]] = [{} for _ in range(group.world)]
    dist.all_gather_object(parts, dict(mine), group=group.handle)
    return tuple(
        dataclasses.replace(one, rank_grads=tuple(part[one.step] for part in parts))
        if all(one.step in part for part in parts)
        else one
        for one in steps
    )


def exchange_batches(group: RankGroup, batches: list[Any]) -> list[Any]:
    """The batches of the next rank; the last one gets those of the first."""
    if group.world == 1:
        return batches
    to = dist.get_global_rank(group.handle, (group.rank - 1) % group.world)
    source = dist.get_global_rank(group.handle, (group.rank + 1) % group.world)
    received: list[Any] = [None]
    # Neighbours take turns. With an odd number of ranks two senders meet at the end of the ring;
    # one of them waits for a neighbour that receives, so it still ends.
    for is_sending in (group.rank % 2 == 0, group.rank % 2 == 1):
        if is_sending:
            dist.send_object_list([batches], dst=to, group=group.handle)
        else:
            dist.recv_object_list(received, src=source, group=group.handle)
    taken: list[Any] = received[0]
    return taken
