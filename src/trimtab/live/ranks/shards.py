"""Local views of tensors that may be sharded over ranks, and the precision to take norms in."""

import torch
from torch.distributed.tensor import DTensor

from trimtab.state.host_copy import local as local


def real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that norms can be taken of: complex numbers as pairs, sparse ones as values."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def norm_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """The precision to take norms in: an fp16 norm of 3e5 reads as infinite, and fp64 is kept."""
    is_double = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if is_double else torch.float32


def num_copies(tensor: torch.Tensor, num_holders: int) -> float:
    """How many ranks hold the same part of a tensor, if `num_holders` ranks hold the tensor.

    Sums of squares over ranks are right for every layout if each local part is divided by this:
    1 under FSDP2, the replicas under HSDP, all under DDP.
    """
    if not isinstance(tensor, DTensor):
        return float(num_holders)
    mesh = tensor.device_mesh
    parts = 1
    for dimension, placement in enumerate(tensor.placements):
        if not placement.is_replicate():  # sharded, or sharded twice
            parts *= mesh.size(dimension)
    return max(num_holders / parts, 1.0)
