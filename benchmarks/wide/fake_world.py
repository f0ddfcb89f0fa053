"""One rank of a very large world, in a process of its own: torch's fake process group."""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tests.kit.traffic import NUM_BLOCKS, traffic
from torch.testing._internal.distributed.fake_pg import FakeStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRank:
    """What one rank of a world of this size does and needs."""

    world: int
    max_collectives: int
    bytes_per_step: float
    max_bytes: int
    peak_mb: float
    group_seconds: float
    """To make the group of the guard, without what a network would add."""
    group_mb: float
    """By how much that raises the memory of the process."""


def measure_rank(world: int) -> FakeRank:
    """Measure in two new processes, so that no peak is that of an earlier world."""
    found = _in_process(_traffic, world)
    group_seconds, group_mb = _in_process(_group, world)
    return FakeRank(
        world=world,
        max_collectives=found[0],
        bytes_per_step=found[1],
        max_bytes=found[2],
        peak_mb=found[3],
        group_seconds=group_seconds,
        group_mb=group_mb,
    )


def _traffic(world: int) -> tuple[int, float, int, float]:
    with tempfile.TemporaryDirectory() as folder:
        found = traffic(world, Path(folder), num_blocks=NUM_BLOCKS)
    return found.max_collectives, found.bytes_per_step, found.max_bytes, _peak_mb()


def _group(world: int) -> tuple[float, float]:
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    before, began = _peak_mb(), time.perf_counter()
    dist.new_group(list(range(world)), use_local_synchronization=True)
    return time.perf_counter() - began, _peak_mb() - before


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _in_process(body: Callable[[int], Any], world: int) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(body, (world,))
