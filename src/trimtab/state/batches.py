"""Batches of any nesting: their tensors, mapped, listed and counted.

A batch is a tensor, or dicts, lists, tuples, named tuples, dataclasses and other mappings (such as
the BatchEncoding of transformers) of batches. Anything else in it is kept as it is.
"""

import copy
import dataclasses
from collections import Counter, UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch


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
    """Return the tensors of a batch, in their order."""
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
