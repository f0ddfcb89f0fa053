"""RankGroup: the ranks that watch together, and the process group that only trimtab uses.

On the default group trimtab's collectives would mix with those of `dcp.async_save` and of user
threads. Which ranks watch is agreed on before the first step through the store of the default
group. The store needs no collective: a rank that is switched off or has failed writes that down,
and no rank waits for it. Ranks with the same facts are counted together as one kind; the first rank
that watches reads the kinds, not the ranks, and writes one short answer for all, so what a rank
reads does not grow with their number.

    turn/RANK      how often this rank has called `watch`
    kind/DIGEST    how many ranks have these facts; the first of them writes facts/ and slots/
    rank/RANK      whether this rank watches
    host/NAME      how many ranks run on this machine
    arrived        how many ranks have written; the last one writes `complete`
    agreed         the answer
"""

import datetime
import hashlib
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.errors import ConfigError
from trimtab.live.shield import log

_HOST = "trimtab/host/"

_WARN_SECONDS = 30.0
"""Between two warnings about ranks that have not called `watch` yet."""


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
    shared: str = ""
    """What the first rank tells the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAgreement:
    """The answer that all ranks that watch have read."""

    off: tuple[int, ...]
    """The ranks that do not watch; usually none."""
    num_holders: int
    """How many ranks hold parameters of the same names as this one."""
    num_here: int
    """How many ranks run on this machine."""
    slots: tuple[str, ...]
    shared: str = ""
    """What the first rank that watches tells the others."""


class Agreement:
    """One rank's part in one agreement."""

    def __init__(self, store: Any, me: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._me = me
        self._ranks = ranks
        self._name = "trimtab/" + _digest(repr(list(ranks)))[:16]
        self._prefix = ""

    def write(self, facts: RankFacts) -> None:
        """Put this rank's facts into the store."""
        store = self._store
        turn = store.add(f"{self._name}/turn/{self._me}", 1)
        self._prefix = f"{self._name}/{turn}"
        slots = json.dumps(facts.slots)
        kind = {
            "error": facts.error,
            "enabled": facts.is_enabled,
            "optimizers": facts.num_optimizers,
            "settings": facts.settings,
            "slots": _digest(slots),
            "names": facts.names,
        }
        text = json.dumps(kind)
        digest = _digest(text)
        if store.add(self._key("kind", digest), 1) == 1:
            store.set(self._key("slots", kind["slots"]), slots)
            store.set(self._key("facts", digest), text)
            place = store.add(self._key("kinds"), 1)
            first = {"digest": digest, "rank": self._me}
            store.set(self._key("kinds", place), json.dumps(first))
        store.set(self._key("rank", self._me), str(int(facts.is_enabled)))
        store.add(self._key("host", socket.gethostname()), 1)
        # Last: once all have arrived, all of the above is there.
        if store.add(self._key("arrived"), 1) == len(self._ranks):
            store.set(self._key("complete"), "1")

    def reach(self, facts: RankFacts, seconds: float) -> GroupAgreement:
        """Agree with the other ranks; raises ConfigError if that is not possible."""
        self.write(facts)
        return self.read(facts, seconds)

    def read(self, facts: RankFacts, seconds: float) -> GroupAgreement:
        """The answer, once all ranks have written; raises ConfigError if there is none."""
        deadline = time.monotonic() + seconds
        answer = self._answer(facts, deadline)
        if answer["error"] is not None:
            raise ConfigError(answer["error"])
        holders, slots = answer["holders"], facts.slots
        if holders is None:
            holders = json.loads(self._wait(self._key("holders", facts.names), deadline, "a rank"))
        if answer["slots_differ"]:
            slots = tuple(json.loads(self._wait(self._key("all-slots"), deadline, "a rank")))
        return GroupAgreement(
            off=tuple(answer["off"]),
            num_holders=int(holders),
            num_here=int(self._store.add(self._key("host", socket.gethostname()), 0)),
            slots=slots,
            shared=answer["shared"],
        )

    def _answer(self, facts: RankFacts, deadline: float) -> dict[str, Any]:
        """Decide if this is the first rank that watches, else read what that rank decides."""
        for rank in self._ranks:
            if rank == self._me:
                answer = self._decide(facts, deadline)
                self._store.set(self._key("agreed"), json.dumps(answer))
                return answer
            if self._wait(self._key("rank", rank), deadline, f"rank {rank}") == b"1":
                return dict(json.loads(self._wait(self._key("agreed"), deadline, f"rank {rank}")))
        raise AssertionError("a rank is not among its own group")

    def _decide(self, facts: RankFacts, deadline: float) -> dict[str, Any]:
        """The answer, from the kinds of ranks and how many there are of each."""
        self._wait(self._key("complete"), deadline, self._name_missing)
        kinds = self._read_kinds()
        watching = [kind for kind in kinds if kind["enabled"]]
        off: list[int] = []
        if len(watching) < len(kinds):
            keys = {rank: self._key("rank", rank) for rank in self._ranks}
            off = [rank for rank, key in keys.items() if self._store.get(key) != b"1"]
        holders: dict[str, int] = {}
        for kind in watching:
            holders[kind["names"]] = holders.get(kind["names"], 0) + kind["count"]
        if len(holders) > 1:
            for names, count in holders.items():
                self._store.set(self._key("holders", names), str(count))
        digests = list(dict.fromkeys(kind["slots"] for kind in watching))
        if len(digests) > 1:
            lists = [json.loads(self._store.get(self._key("slots", d))) for d in digests]
            together = list(dict.fromkeys(slot for slots in lists for slot in slots))
            self._store.set(self._key("all-slots"), json.dumps(together))
        return {
            "error": _problem(watching, off),
            "off": off,
            "holders": next(iter(holders.values())) if len(holders) == 1 else None,
            "slots_differ": len(digests) > 1,
            "shared": facts.shared,
        }

    def _read_kinds(self) -> list[dict[str, Any]]:
        """The facts of each kind of rank, its first rank and its count, by that rank."""
        kinds = []
        for place in range(1, self._store.add(self._key("kinds"), 0) + 1):
            first = json.loads(self._store.get(self._key("kinds", place)))
            kind = json.loads(self._store.get(self._key("facts", first["digest"])))
            count = self._store.add(self._key("kind", first["digest"]), 0)
            kinds.append({**kind, "rank": first["rank"], "count": count})
        return sorted(kinds, key=lambda kind: self._ranks.index(kind["rank"]))

    def _name_missing(self) -> str:
        for rank in self._ranks:
            if not self._store.check([self._key("rank", rank)]):
                return f"rank {rank}"
        return "a rank"

    def _key(self, *parts: object) -> str:
        return "/".join([self._prefix, *map(str, parts)])

    def _wait(self, key: str, deadline: float, who: str | Callable[[], str]) -> bytes:
        """The value of a key, as soon as a rank has set it."""
        while True:
            left = deadline - time.monotonic()
            try:
                wait = datetime.timedelta(seconds=max(min(left, _WARN_SECONDS), 0.01))
                self._store.wait([key], wait)
                value: bytes = self._store.get(key)
                return value
            except Exception as error:  # each kind of store has an error of its own
                missing = who if isinstance(who, str) else who()
                if left <= _WARN_SECONDS:
                    raise ConfigError(
                        f"{missing} has not called trimtab.watch; call it on every rank that "
                        "trains, or name the ranks that do in the setting live.ranks"
                    ) from error
                log.warning(
                    "trimtab waits for %s to call trimtab.watch; if it does not train, set "
                    "live.ranks to those that do",
                    missing,
                )


def _problem(watching: Sequence[dict[str, Any]], off: Sequence[int]) -> str | None:
    for kind in watching:
        if kind["error"] is not None:
            return f"rank {kind['rank']} could not start: {kind['error']}"
    for what, advice in (
        ("optimizers", "watch the same number of optimizers on every rank"),
        ("settings", "call watch with the same mode and settings on every rank"),
    ):
        values = {json.dumps(kind[what]) for kind in watching}
        if len(values) > 1:
            return f"ranks differ in {what} ({', '.join(sorted(values))}); {advice}"
    if off and not watching[0]["settings"].startswith("observe"):
        return (
            f"watch is switched off on rank {off[0]}, and a decision must be made by all ranks; "
            "call watch on every rank (only the first one writes), or use mode='observe'"
        )
    return None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The ranks that watch one run."""

    rank: int = 0
    """Of this process, within the group; the first one journals and judges."""
    world: int = 1
    num_holders: int = 1
    """How many ranks hold parameters of the same names: all, or the replicas of a stage."""
    num_here: int = 0
    """How many ranks run on this machine; 0 if that is not known."""
    handle: Any = None
    """The process group; None if there is only one rank."""
    slots: tuple[str, ...] = ()
    """The telemetry of all ranks: each measures some or all of it."""
    shared: str = ""
    """What the first rank tells the others."""
    is_replicated: bool = False
    """Whether every rank holds all of the model, as under DDP and local SGD."""
    seconds: float = 0.0
    """How long a rank waits for another in an exchange; 0 if torch's test backends decide."""


def find_ranks(model: nn.Module, given: Sequence[int] = ()) -> list[int]:
    """Return the global ranks that train this model: those given, or those of its DDP, or all."""
    if dist.get_backend() == "fake":
        return list(range(dist.get_world_size()))
    if given:
        return list(given)
    parallel = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    if len(parallel) == 1 and is_plain(model) and parallel[0].process_group is not None:
        return dist.get_process_group_ranks(parallel[0].process_group)
    return list(range(dist.get_world_size()))


def is_plain(model: nn.Module) -> bool:
    """Return whether this rank holds all of every parameter: no DTensor, no flat shard of FSDP1."""
    return all(type(p) in (nn.Parameter, torch.Tensor) for p in model.parameters())


def join_group(
    ranks: Sequence[int], facts: RankFacts, device: torch.device, seconds: float
) -> RankGroup:
    """Agree with the other ranks and make a group of those that watch; raises ConfigError."""
    me = dist.get_rank()
    if len(ranks) == 1 or dist.get_backend() == "fake":
        place = ranks.index(me)
        handle = None if len(ranks) == 1 else dist.group.WORLD
        return RankGroup(
            rank=place,
            world=len(ranks),
            num_holders=len(ranks),
            handle=handle,
            slots=facts.slots,
            shared=facts.shared,
        )
    agreed = Agreement(_store(), me, ranks).reach(facts, seconds)
    off = set(agreed.off)
    members = [rank for rank in ranks if rank not in off]
    _store().set(f"{_HOST}{members.index(me)}", f"global rank {me} on {socket.gethostname()}")
    return RankGroup(
        rank=members.index(me),
        world=len(members),
        num_holders=agreed.num_holders,
        num_here=agreed.num_here,
        handle=_new_group(members, device, seconds) if len(members) > 1 else None,
        slots=agreed.slots,
        shared=agreed.shared,
        seconds=0.0 if _is_of_tests(dist.get_backend()) else seconds,
    )


def host_of(rank: int) -> str:
    """Return where a rank of the group runs, without waiting for it."""
    key = f"{_HOST}{rank}"
    has_store = dist.is_initialized() and _store().check([key])
    return _store().get(key).decode() if has_store else ""


def announce(ranks: Sequence[int], facts: RankFacts) -> None:
    """Let the ranks that watch know that this one does not."""
    if len(ranks) > 1 and dist.get_backend() != "fake":
        Agreement(_store(), dist.get_rank(), ranks).write(facts)


def _new_group(members: list[int], device: torch.device, seconds: float) -> Any:
    timeout = datetime.timedelta(seconds=seconds)
    if _is_of_tests(dist.get_backend()):
        return dist.new_group(members)
    # Gradients that are offloaded to the host need a backend for the host.
    chosen = "gloo" if device.type == "cpu" else None
    return dist.new_group(members, timeout=timeout, backend=chosen, use_local_synchronization=True)


def _is_of_tests(backend: str) -> bool:
    """Whether this is one of torch's test backends, which take neither time-outs nor options."""
    return backend not in ("gloo", "nccl") and ":" not in backend


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
