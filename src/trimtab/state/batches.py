"""Batches of any nesting: their tensors, mapped, listed and counted; copies of the newest ones.

A batch is a tensor, or dicts, lists, tuples, named tuples, dataclasses and other mappings (such as
the BatchEncoding of transformers) of batches. Anything else in it is kept as it is.
"""

import copy
import dataclasses
from collections import Counter, UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from trimtab.core.log import log

NUM_BATCHES, MAX_BYTES = 4, 256 << 20
"""Batches that are remembered, and their size in memory at most."""


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return the batch in new containers of the same types, with each tensor changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        parts = {key: map_tensors(value, change) for key, value in batch.items()}
        return parts if type(batch) is dict else _as_mapping(batch, parts)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, change) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changed = copy.copy(batch)
        for field in dataclasses.fields(batch):
            # Not by assignment: the class may be frozen.
            object.__setattr__(changed, field.name, map_tensors(getattr(batch, field.name), change))
        return changed
    return batch


def clone(batch: Any) -> Any:
    """Return a copy of the batch that may be written to."""
    return map_tensors(batch, torch.Tensor.clone)


def tensors_in(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(batch, found.append)
    return found


def num_rows(batch: Any, *, of_all: bool = False) -> int:
    """Return the number of rows: the first size that most tensors share; 0 without tensors.

    With `of_all`, 0 unless every tensor has that many rows: such a batch can be cut by rows.
    """
    tensors = tensors_in(batch)
    sizes = Counter(len(tensor) for tensor in tensors if tensor.ndim)
    if of_all and (len(sizes) > 1 or not all(tensor.ndim for tensor in tensors)):
        return 0
    return sizes.most_common(1)[0][0] if sizes else 0


def _as_mapping(batch: Any, parts: dict[Any, Any]) -> Any:
    """Return the parts in a mapping like `batch`, or in a dict if that cannot be made."""
    if isinstance(batch, dict | UserDict):
        # A copy keeps attributes, which the constructor would lose. Other mappings may share what
        # they hold with their copies.
        try:
            copied: Any = copy.copy(batch)
            copied.update(parts)
            return copied
        except Exception:  # noqa: S110 - ModelOutput of transformers refuses updates
            pass
    try:
        return type(batch)(parts)
    except TypeError:
        return parts


class RememberedBatches:
    """Copies of the newest batches that `guard.record(batch=...)` was given."""

    def __init__(self) -> None:
        self._batches: deque[Any] = deque(maxlen=NUM_BATCHES)
        self._num_new = 0
        """Batches since the last update."""
        self._has_complained = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def of_step(self) -> list[Any]:
        """Those of the step that is about to be taken: its last micro-batches."""
        return list(self._batches)[-self._num_new :] if self._num_new else []

    def end_step(self) -> None:
        """They are trained on now."""
        self._num_new = 0

    def add(self, batch: Any) -> None:
        """Copy a batch, since loops write to theirs; leave out what cannot be copied."""
        try:
            copied, size = _copy_and_count(batch)
            if size > MAX_BYTES // NUM_BATCHES:
                raise MemoryError(f"it has {size / 1e6:.0f} MB")
            self._batches.append(copied)
            self._num_new += 1
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                log.warning(
                    "trimtab: batches of type %s are not remembered, so no experiments are made: "
                    "%s",
                    type(batch).__name__,
                    error,
                )


def copy_batch(batch: Any) -> Any:
    """Return a copy of a batch of any class: `batch_loss` may write to it."""
    return _copy_and_count(batch)[0]


def _copy_and_count(batch: Any) -> tuple[Any, int]:
    """Return a copy of a batch of any class, and the bytes of the arrays and tensors in it.

    A batch whose tensors have a graph has those copied by themselves.
    """
    memo: dict[int, Any] = {}
    try:
        copied = copy.deepcopy(batch, memo)
        parts = list(memo.values())  # all that was copied, in objects of any class
    except RuntimeError:
        copied = map_tensors(batch, lambda tensor: tensor.detach().clone())
        parts = tensors_in(copied)
    arrays = (part for part in parts if isinstance(part, torch.Tensor | np.ndarray))
    return copied, sum(array.nbytes for array in arrays)
