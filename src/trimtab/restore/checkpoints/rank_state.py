"""RankState: what one rank saves for itself, beside what the checkpointer writes."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trimtab.restore.checkpoints.data_cursor import Mark
from trimtab.restore.checkpoints.index import CheckpointEntry
from trimtab.restore.checkpoints.store import CheckpointStore
from trimtab.restore.rng import RandomState

log = logging.getLogger("trimtab")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What one rank saves for itself, beside what the checkpointer writes."""

    mark: Mark | None
    """A place in the data at or before `position`; None if the cursor was not used."""
    position: int
    """Of the next batch."""
    random: RandomState | None = None
    guard: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """The buffers that `state_dict` leaves out."""

    def put_buffers(self, live: Mapping[str, Tensor]) -> None:
        """Copy the buffers into the live ones, where they still fit."""
        for name, saved in self.buffers.items():
            if name in live and live[name].shape == saved.shape:
                live[name].copy_(saved)

    def for_different_rank(self) -> "RankState":
        """What a rank can use that did not write it: not the loader, nor the random numbers."""
        mark = None if self.mark is None else self.mark.without_loader()
        return RankState(mark=mark, position=self.position, guard=self.guard)


def read_rank_state(store: CheckpointStore, entry: CheckpointEntry) -> RankState:
    """What this rank has saved in a verified checkpoint, or what it can use of the first one's."""
    rank, world = store.ranks.rank, store.ranks.world
    found = store.read_of_rank(entry, rank)
    if isinstance(found, RankState) and entry.facts.world == world:
        return found
    log.warning(
        "trimtab: the checkpoint was saved by %d ranks and not %d: the state of the loader and the "
        "random numbers are not restored",
        entry.facts.world,
        world,
    )
    first = store.read_of_rank(entry, 0)
    if isinstance(first, RankState):
        return first.for_different_rank()
    return RankState(mark=None, position=entry.facts.data_position)
