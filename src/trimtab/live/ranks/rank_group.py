"""RankGroup: the ranks that watch together, and the process group that only trimtab uses.

On the default group trimtab's collectives mix with those of `dcp.async_save` and of user threads.
Which ranks those are is agreed on before the first step (agreement.py).
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab.live.ranks.agreement import Agreement, RankFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The ranks that watch one run."""

    rank: int = 0
    """Of this process, within the group; the first one journals and judges."""
    world: int = 1
    num_holders: int = 1
    """How many ranks hold parameters of the same names: all, or the replicas of a stage."""
    handle: Any = None
    """The process group; None if there is only one rank."""
    slots: tuple[str, ...] = ()
    """The telemetry of all ranks: each measures some or all of it."""
    quarantined: tuple[int | str, ...] | None = None
    """Data positions and sources that all ranks pass over; None if nothing was agreed on."""


def find_ranks(model: nn.Module, given: Sequence[int] = ()) -> list[int]:
    """Return the global ranks that train this model: those given, or those of its DDP, or all."""
    if dist.get_backend() == "fake":
        return list(range(dist.get_world_size()))
    if given:
        return list(given)
    parallel = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    is_plain = all(type(p) in (nn.Parameter, torch.Tensor) for p in model.parameters())
    if len(parallel) == 1 and is_plain and parallel[0].process_group is not None:
        return dist.get_process_group_ranks(parallel[0].process_group)
    return list(range(dist.get_world_size()))


def join_group(
    ranks: Sequence[int], facts: RankFacts, device: torch.device, seconds: float
) -> RankGroup:
    """Agree with the other ranks and make a group of those that watch; raises ConfigError."""
    me = dist.get_rank()
    if len(ranks) == 1 or dist.get_backend() == "fake":
        place = ranks.index(me)
        handle = None if len(ranks) == 1 else dist.group.WORLD
        return RankGroup(
            rank=place, world=len(ranks), num_holders=len(ranks), handle=handle, slots=facts.slots
        )
    agreed = Agreement(_store(), me, ranks).reach(facts, seconds)
    off = set(agreed.off)
    members = [rank for rank in ranks if rank not in off]
    return RankGroup(
        rank=members.index(me),
        world=len(members),
        num_holders=agreed.num_holders,
        handle=_new_group(members, device, seconds) if len(members) > 1 else None,
        slots=agreed.slots,
        quarantined=agreed.quarantined,
    )


def announce(ranks: Sequence[int], facts: RankFacts) -> None:
    """Let the ranks that watch know that this one does not."""
    if len(ranks) > 1 and dist.get_backend() != "fake":
        Agreement(_store(), dist.get_rank(), ranks).write(facts)


def _new_group(members: list[int], device: torch.device, seconds: float) -> Any:
    timeout = datetime.timedelta(seconds=seconds)
    backend = dist.get_backend()
    if backend not in ("gloo", "nccl") and ":" not in backend:  # torch's test backends
        return dist.new_group(members)
    # Gradients that are offloaded to the host need a backend for the host.
    chosen = "gloo" if device.type == "cpu" else None
    return dist.new_group(members, timeout=timeout, backend=chosen, use_local_synchronization=True)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
