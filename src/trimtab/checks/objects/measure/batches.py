"""Batches of any nesting: drawn, cut to a size that can be afforded, split, compared."""

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from trimtab.live.measure.batch_facts import fingerprint, host_tensors

TensorFunction = Callable[[torch.Tensor], torch.Tensor]


def map_tensors(batch: Any, change: TensorFunction) -> Any:
    """The batch with each tensor changed; containers are copied, everything else is kept."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        changed = {name: map_tensors(part, change) for name, part in batch.items()}
        if type(batch) is dict:
            return changed
        copied: Any = copy.copy(batch)  # such as the BatchEncoding of transformers
        copied.update(changed)
        return copied
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(part, change) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(part, change) for part in batch)
    return batch


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """All tensors of a batch, in its own order."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, keep)
    return found


def cloned(batch: Any) -> Any:
    """A copy that the user's code may change."""
    return map_tensors(batch, torch.clone)


def num_rows(batch: Any) -> int:
    """The length of the first dimension, if all tensors have the same; 0 otherwise."""
    sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors_in(batch)}
    return sizes.pop() if len(sizes) == 1 else 0


def cut_rows(batch: Any, first: int, last: int) -> Any:
    """Some rows of a batch."""
    return map_tensors(batch, lambda tensor: tensor[first:last])


def cut(batch: Any, rows: int, elements: int) -> Any:
    """The first rows, of sequences only as much as fits into `elements` tokens.

    Sequences are cut only where every tensor is whole numbers of one (rows, length) shape.
    """
    total = num_rows(batch)
    if not total:
        return cloned(batch)
    rows = min(rows, total)
    tensors = tensors_in(batch)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    is_text = not any(tensor.is_floating_point() for tensor in tensors)
    length = max((shape[1] for shape in shapes if len(shape) == 2), default=0)
    if is_text and len(shapes) == 1 and length:
        most = max(elements // rows, 8)
        return map_tensors(batch, lambda tensor: tensor[:rows, :most].clone())
    return map_tensors(batch, lambda tensor: tensor[:rows].clone())


def batch_fingerprint(batch: Any) -> int:
    """Equal for equal batches."""
    on_host = map_tensors(batch, lambda tensor: tensor.detach().cpu())
    return fingerprint([list(host_tensors(on_host))])


def row_fingerprints(batch: Any) -> Iterator[int]:
    """One number per row of the batch, equal for equal rows."""
    on_host = map_tensors(batch, lambda tensor: tensor.detach().cpu())
    for row in range(num_rows(batch)):
        parts = (t[row].contiguous().reshape(-1) for t in host_tensors(on_host))
        value = 0
        for part in parts:
            value = zlib.crc32(part.view(torch.uint8).numpy().data, value)
        yield value
