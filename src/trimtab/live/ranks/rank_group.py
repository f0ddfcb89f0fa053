"""RankGroup: the ranks that watch together, and the process group that only trimtab uses.

On the default group trimtab's collectives mix with those of `dcp.async_save` and of user threads.
Ranks agree through the store of the default group, which needs no collective: a rank that is
switched off or has failed writes that down, and no rank waits for it.
"""

import datetime
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.errors import ConfigError
from trimtab.live.shield import log

_LOOK_SECONDS = 30.0
"""Between two warnings about ranks that have not called `watch` yet."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What a rank reports to the others before the first step."""

    error: str | None = None
    """Why this rank cannot watch."""
    is_enabled: bool = True
    num_optimizers: int = 0
    settings: str = ""
    """What must be equal on all ranks: mode, lag, telemetry."""
    slots: tuple[str, ...] = ()
    names: str = ""
    """A digest of the names of the parameters."""
    quarantined: tuple[int | str, ...] = ()
    """Data positions and sources to pass over; those of the first rank count."""


def find_ranks(model: nn.Module, process_group: Any) -> list[int]:
    """The global ranks that train this model: those of the group given, or of its DDP, or all."""
    if process_group is None:
        parallel = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        is_plain = all(type(p) in (nn.Parameter, torch.Tensor) for p in model.parameters())
        if len(parallel) == 1 and is_plain:
            process_group = parallel[0].process_group
    if process_group is None or dist.get_backend() == "fake":
        return list(range(dist.get_world_size()))
    return dist.get_process_group_ranks(process_group)


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
    agreed = _agree(ranks, facts, seconds)
    if agreed["error"] is not None:
        raise ConfigError(agreed["error"])
    members = agreed["members"]
    rank, world = members.index(me), len(members)
    handle = None
    if world > 1:
        handle = _new_group(members, device, seconds)
    return RankGroup(
        rank=rank,
        world=world,
        num_holders=agreed["holders"][facts.names],
        handle=handle,
        slots=tuple(agreed["slots"]),
        quarantined=tuple(agreed["quarantined"]),
    )


def announce(ranks: Sequence[int], facts: RankFacts) -> None:
    """Let the ranks that watch know that this one does not."""
    if len(ranks) > 1 and dist.get_backend() != "fake":
        _write(ranks, facts)


def _new_group(members: list[int], device: torch.device, seconds: float) -> Any:
    timeout = datetime.timedelta(seconds=seconds)
    backend = dist.get_backend()
    if backend not in ("gloo", "nccl") and ":" not in backend:  # torch's test backends
        return dist.new_group(members)
    # Gradients that are offloaded to the host need a backend for the host.
    chosen = "gloo" if device.type == "cpu" else None
    return dist.new_group(members, timeout=timeout, backend=chosen, use_local_synchronization=True)


def _write(ranks: Sequence[int], facts: RankFacts) -> str:
    """Put this rank's facts into the store; returns the prefix of this call of `watch`."""
    store, me = _store(), dist.get_rank()
    name = "trimtab/" + hashlib.blake2b(repr(list(ranks)).encode()).hexdigest()[:16]
    turn = store.add(f"{name}/turn/{me}", 1)
    prefix = f"{name}/{turn}"
    slots = json.dumps(facts.slots)
    digest = hashlib.blake2b(slots.encode()).hexdigest()
    store.set(f"{prefix}/slots/{digest}", slots)
    written = {
        "error": facts.error,
        "enabled": facts.is_enabled,
        "optimizers": facts.num_optimizers,
        "settings": facts.settings,
        "slots": digest,
        "names": facts.names,
        "quarantined": facts.quarantined,
    }
    store.set(f"{prefix}/rank/{me}", json.dumps(written))
    return prefix


def _agree(ranks: Sequence[int], facts: RankFacts, seconds: float) -> dict[str, Any]:
    prefix = _write(ranks, facts)
    deadline = time.monotonic() + seconds
    for rank in ranks:
        if rank == dist.get_rank():
            agreed = _decide(prefix, ranks, deadline)
            _store().set(f"{prefix}/agreed", json.dumps(agreed))
            return agreed
        if _read(prefix, rank, deadline)["enabled"]:
            return dict(json.loads(_wait(f"{prefix}/agreed", deadline, f"rank {rank}")))
    raise AssertionError("a rank is not among its own group")


def _decide(prefix: str, ranks: Sequence[int], deadline: float) -> dict[str, Any]:
    """What the first rank that watches makes of the facts of all."""
    found = {rank: _read(prefix, rank, deadline) for rank in ranks}
    watching = {rank: fact for rank, fact in found.items() if fact["enabled"]}
    off = [rank for rank in ranks if rank not in watching]
    digests = dict.fromkeys(fact["slots"] for fact in watching.values())
    lists = [json.loads(_wait(f"{prefix}/slots/{d}", deadline, "a rank")) for d in digests]
    names = [fact["names"] for fact in watching.values()]
    return {
        "error": _problem(watching, off),
        "members": list(watching),
        "slots": list(dict.fromkeys(slot for slots in lists for slot in slots)),
        "holders": {name: names.count(name) for name in names},
        "quarantined": next(iter(watching.values()))["quarantined"],
    }


def _problem(watching: dict[int, dict[str, Any]], off: list[int]) -> str | None:
    for rank, fact in watching.items():
        if fact["error"] is not None:
            return f"rank {rank} could not start: {fact['error']}"
    for what, advice in (
        ("optimizers", "watch the same number of optimizers on every rank"),
        ("settings", "call watch with the same mode and settings on every rank"),
    ):
        values = {json.dumps(fact[what]) for fact in watching.values()}
        if len(values) > 1:
            return f"ranks differ in {what} ({', '.join(sorted(values))}); {advice}"
    settings = next(iter(watching.values()))["settings"]
    if off and not settings.startswith("observe"):
        return (
            f"watch is switched off on rank {off[0]}, and a decision must be made by all ranks; "
            "call watch on every rank (only the first one writes), or use mode='observe'"
        )
    return None


def _read(prefix: str, rank: int, deadline: float) -> dict[str, Any]:
    return dict(json.loads(_wait(f"{prefix}/rank/{rank}", deadline, f"rank {rank}")))


def _wait(key: str, deadline: float, who: str) -> bytes:
    """The value of a key, as soon as a rank has set it."""
    store = _store()
    while True:
        left = deadline - time.monotonic()
        try:
            store.wait([key], datetime.timedelta(seconds=max(min(left, _LOOK_SECONDS), 0.01)))
            value: bytes = store.get(key)
            return value
        except Exception as error:  # each kind of store has an error of its own
            if left <= _LOOK_SECONDS:
                raise ConfigError(
                    f"{who} has not called trimtab.watch; call it on every rank that trains, or "
                    "pass process_group= with the ranks that do"
                ) from error
            log.warning(
                "trimtab waits for %s to call trimtab.watch; pass process_group= if it does not "
                "train this model",
                who,
            )


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
