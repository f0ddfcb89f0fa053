"""What the ranks ask of the store before the first step: real code, a real TCPStore on loopback.

The ranks are played one after the other by a few clients; each writes and reads what a rank does.
"""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.kit.traffic import NUM_BLOCKS, CountingStore
from torch._C._distributed_c10d import TCPStore

from trimtab.live.ranks.rank_group import Agreement, RankFacts

CLIENTS = 4
SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """The cost of one agreement."""

    max_calls: int
    """Of any rank but the first."""
    max_read: int
    max_written: int
    first_calls: int
    seconds: float
    """Until all ranks have the answer, with one store and a few clients on this machine."""


def facts_of_a_rank() -> RankFacts:
    """The facts of a rank that holds all blocks."""
    kinds = ("param_norm", "update_norm", "grad_norm", "adam_v_norm", "activation_rms")
    slots = tuple(f"{kind}/blocks.{block}" for block in range(NUM_BLOCKS) for kind in kinds)
    return RankFacts(num_optimizers=1, settings="protect 2 10", slots=slots, names="0" * 128)


def measure_start_up(world: int) -> StartUp:
    """Let every rank of a world take part in one agreement."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clients = [
        TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        for _ in range(CLIENTS)
    ]
    facts = facts_of_a_rank()
    original = Agreement(server, 0, range(world))
    parts: dict[int, tuple[Agreement, CountingStore]] = {}
    for rank in range(world):
        store = CountingStore(clients[rank % CLIENTS])
        part = copy.copy(original)  # its name is a digest of all ranks, which takes milliseconds
        part._store, part._me = store, rank
        parts[rank] = (part, store)
    first, first_store = parts.pop(0)
    began = time.perf_counter()
    _each(parts, lambda part: part.write(facts))
    first.write(facts)
    first.read(facts, SECONDS)
    _each(parts, lambda part: part.read(facts, SECONDS))
    seconds = time.perf_counter() - began
    stores = [store for _, store in parts.values()]
    return StartUp(
        max_calls=max(store.calls.total() for store in stores),
        max_read=max(store.num_read for store in stores),
        max_written=max(store.num_written for store in stores),
        first_calls=first_store.calls.total(),
        seconds=seconds,
    )


def _each(
    parts: dict[int, tuple[Agreement, CountingStore]], do: Callable[[Agreement], object]
) -> None:
    problems: list[Exception] = []

    def work(ranks: Sequence[int]) -> None:
        try:
            for rank in ranks:
                do(parts[rank][0])
        except Exception as error:
            problems.append(error)

    groups = [[rank for rank in parts if rank % CLIENTS == client] for client in range(CLIENTS)]
    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
