"""Sequences of a batch and their tokens, kept or replaced by those of a healthy batch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from trimtab.state.batches import map_tensors, num_rows, tensors_in


def num_tokens(batch: Any) -> int:
    """How many tokens each sequence has: the second size of its whole numbers; 0 without any."""
    rows = num_rows(batch)
    sizes = Counter(
        tensor.shape[1]
        for tensor in tensors_in(batch)
        if tensor.ndim >= 2 and len(tensor) == rows and not tensor.is_floating_point()
    )
    return sizes.most_common(1)[0][0] if sizes else 0


def keep_rows(
    batch: Any, healthy: Any, rows: Sequence[int], span: tuple[int, int] | None = None
) -> Any:
    """The batch in which all other sequences are those of a healthy batch.

    With a span, of the kept sequences the tokens outside of it are the healthy ones' as well.
    Tensors that do not match in shape, or have no row for each sequence, stay the batch's own.
    """
    size, length = num_rows(batch), num_tokens(batch)
    others = tensors_in(healthy)
    mine = tensors_in(batch)
    if len(others) != len(mine):
        return batch
    partner = iter(others)
    kept = torch.tensor([row for row in rows if row < size], dtype=torch.long)

    def mix(tensor: torch.Tensor) -> torch.Tensor:
        other = next(partner)
        if other.shape != tensor.shape or tensor.ndim == 0 or len(tensor) != size:
            return tensor
        mixed = other.to(tensor.device, copy=True)
        index = kept.to(tensor.device)
        if span is not None and tensor.ndim >= 2 and tensor.shape[1] == length:
            first, end = span
            mixed[index, first:end] = tensor[index, first:end]
        else:
            mixed[index] = tensor[index]
        return mixed

    return map_tensors(batch, mix)
