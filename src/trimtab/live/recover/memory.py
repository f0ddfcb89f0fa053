"""How many snapshots fit into host memory, and how old they can get."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trimtab.core.config import RecoverConfig
from trimtab.state.host_copy import detached
from trimtab.state.ring import MIN_SLOTS
from trimtab.state.training_state import TrainingState

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and use of a container's memory, in both versions of control groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many snapshots are kept, up to which age."""

    slots: int
    oldest: int


def plan_slots(
    config: RecoverConfig, *, slot_bytes: int, step_bytes: float, free_bytes: int, num_ranks: int
) -> Plan:
    """The plan that fits: first fewer snapshots, then none.

    Args:
        config: The ages that are wanted.
        slot_bytes: Memory of a snapshot on this rank.
        step_bytes: Memory of the batches of a step on the tape.
        free_bytes: Free memory of the machine.
        num_ranks: Ranks that share it.
    """
    every, oldest = config.snapshot_every, config.oldest_steps
    budget = config.memory_share * free_bytes / num_ranks
    # Half of it for the tape: it reaches back to the oldest snapshot, up to twice `oldest`.
    if step_bytes * 2 * oldest > budget / 2:
        oldest = int(budget / 2 / step_bytes / 2)
    if oldest < every:
        return Plan(slots=0, oldest=0)
    budget -= step_bytes * 2 * oldest
    # One for each doubling of the age, and one in between.
    wanted = math.ceil(math.log2(oldest / every)) + 2
    slots = min(wanted, int(budget // max(slot_bytes, 1)))
    return Plan(slots=slots, oldest=oldest) if slots >= MIN_SLOTS else Plan(slots=0, oldest=0)


def slot_bytes(state: TrainingState, num_replicas: int) -> int:
    """Host memory that a snapshot of the present state takes on this rank."""
    shared = [state.tensors()["parameters"], state.optimizer_state()]
    others = [state.tensors()["buffers"], state.gradients()]
    others += [part.state_dict() for part in state.state.values()]
    return _nbytes(shared) // num_replicas + _nbytes(others)


def free_memory() -> int:
    """Bytes of host memory that are free, in the container if there is one."""
    found = []
    try:
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit, used in _CGROUPS:
        try:
            found.append(int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # "max": there is no limit
            continue
    return max(min(found), 0)


def ranks_here(world: int) -> int:
    """How many ranks share the memory of this machine; all of them if that is not known."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world))


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return detached(value).nbytes
    if isinstance(value, dict):
        return sum(map(_nbytes, value.values()))
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0
