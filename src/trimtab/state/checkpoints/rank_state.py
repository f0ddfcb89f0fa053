"""RankState: what one rank saves for itself, beside what the checkpointer writes.

A checkpoint may come from anywhere, and unpickling runs code. So what a rank saves for itself is
made of tensors, numbers, text, bytes, None, dicts, lists and tuples (`to_plain`), and is read with
`weights_only=True`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.log import log
from trimtab.journal.checkpoints.index import CheckpointEntry
from trimtab.state.checkpoints.data_cursor import Mark
from trimtab.state.checkpoints.store import CheckpointStore
from trimtab.state.rng import RandomState

_ARRAY = "trimtab: array of "


def to_plain(value: Any) -> Any:
    """The value as plain ones; raises TypeError if a part of it is anything else."""
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.Tensor):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {_ARRAY + str(value.dtype): value.tolist()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {to_plain(key): to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [to_plain(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    raise TypeError(f"a {type(value).__name__} cannot be saved as plain values")


def from_plain(value: Any) -> Any:
    """The value again, with its arrays; dataclasses stay dicts of their fields."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, part),) = value.items()
            if isinstance(key, str) and key.startswith(_ARRAY):
                return np.array(part, dtype=key.removeprefix(_ARRAY))
        return {key: from_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(from_plain(part) for part in value)
    return value


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

    def to_plain(self) -> dict[str, Any]:
        """As it is saved; a loader whose state is not made of plain values is left out."""
        try:
            return dict(to_plain(self))
        except TypeError as error:
            log.warning(
                "trimtab: the state of the loader is not saved (%s): a resume draws batches again",
                error,
            )
            mark = None if self.mark is None else replace(self.mark, loader=None)
            return dict(to_plain(replace(self, mark=mark)))

    @classmethod
    def from_plain(cls, saved: Any) -> "RankState | None":
        """What was saved; None if it is not that of a rank."""
        try:
            values = from_plain(saved)
            mark, random = values["mark"], values["random"]
            if mark is not None:
                mark = Mark(**{**mark, "random_at_start": RandomState(**mark["random_at_start"])})
            return cls(
                **{
                    **values,
                    "mark": mark,
                    "random": None if random is None else RandomState(**random),
                }
            )
        except (KeyError, TypeError, ValueError):
            return None

    def for_different_rank(self) -> "RankState":
        """What a rank can use that did not write it: not the loader, nor the random numbers."""
        mark = None if self.mark is None else self.mark.without_loader()
        return RankState(mark=mark, position=self.position, guard=self.guard)


def read_rank_state(store: CheckpointStore, entry: CheckpointEntry) -> RankState:
    """What this rank has saved in a verified checkpoint, or what it can use of the first one's."""
    rank, world = store.ranks.rank, store.ranks.world
    found = RankState.from_plain(store.read_of_rank(entry, rank))
    if found is not None and entry.facts.world == world:
        return found
    log.warning(
        "trimtab: a checkpoint of %d ranks, resumed by %d: loader state and random numbers are not "
        "restored",
        entry.facts.world,
        world,
    )
    first = RankState.from_plain(store.read_of_rank(entry, 0))
    if first is not None:
        return first.for_different_rank()
    return RankState(mark=None, position=entry.facts.data_position)
