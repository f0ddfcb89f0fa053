"""Ranks: what the ranks of a run do together when they save, verify or load a checkpoint.

What fails on one rank fails on all: no rank waits for one that has given up.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist

from trimtab.core.errors import RestoreError
from trimtab.core.plugins import describe_error

T = TypeVar("T")


class Ranks:
    """The ranks that share the checkpoints of one run. Make it on all of them at the same time."""

    def __init__(self, process_group: Any = None) -> None:
        self.rank, self.world = 0, 1
        self._group: Any = None
        self.checkpointer_group: Any = None
        """For the checkpointer alone: it may save in a thread while the ranks talk elsewhere."""
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.world > 1:
            members = dist.get_process_group_ranks(process_group or dist.group.WORLD)
            # On the host, and apart from the user's groups: collectives of a background save would
            # mix with theirs.
            self._group, self.checkpointer_group = (
                dist.new_group(members, backend="gloo", use_local_synchronization=True)
                for _ in range(2)
            )

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the index."""
        return self.rank == 0

    def all(self, action: Callable[[], T]) -> list[T]:
        """Do something on every rank; returns the results of all, or raises RestoreError."""
        result: T | None = None
        problem: str | None = None
        try:
            result = action()
        except Exception as error:  # the other ranks must know of it
            problem = describe_error(error)
        outcomes = self._gather((result, problem))
        for rank, (_, why) in enumerate(outcomes):
            if why is not None:
                raise RestoreError(why if self.world == 1 else f"rank {rank}: {why}")
        return [value for value, _ in outcomes]

    def first(self, action: Callable[[], T]) -> T:
        """Do something on the first rank; returns its result on every rank."""
        return cast(T, self.all(lambda: action() if self.is_first else None)[0])

    def share(self, names: list[str]) -> list[str]:
        """The part of a list that this rank works on."""
        return names[self.rank :: self.world]

    def _gather(self, value: Any) -> list[Any]:
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._group)
        return values
