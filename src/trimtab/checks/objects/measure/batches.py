"""Batches of any nesting: drawn, cut to a size that can be afforded, split, compared."""

import zlib
from collections.abc import Iterator
from typing import Any

import torch

from trimtab.live.measure.batch_facts import fingerprint, host_tensors
from trimtab.state.batches import clone, map_tensors, num_rows, tensors_in


def cut_rows(batch: Any, first: int, last: int) -> Any:
    """Some rows of a batch."""
    return map_tensors(batch, lambda tensor: tensor[first:last])


def cut(batch: Any, rows: int, elements: int) -> Any:
    """The first rows, of sequences only as much as fits into `elements` tokens.

    Sequences are cut only where every tensor is whole numbers of one (rows, length) shape.
    """
    total = num_rows(batch, of_all=True)
    if not total:
        return clone(batch)
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
    for row in range(num_rows(batch, of_all=True)):
        parts = (t[row].contiguous().reshape(-1) for t in host_tensors(on_host))
        value = 0
        for part in parts:
            value = zlib.crc32(part.view(torch.uint8).numpy().data, value)
        yield value
