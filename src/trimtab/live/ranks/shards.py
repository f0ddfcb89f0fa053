"""Local views of parameters that may be sharded over ranks, and how often each is held.

Sums of squares over all ranks are right for every layout if each local part is divided by the
number of ranks that hold the same part: 1 under FSDP2, the replicas under HSDP, all under DDP.
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from trimtab.core.errors import ConfigError


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def norm_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """The precision to take norms in: an fp16 norm of 3e5 reads as infinite, and fp64 is kept."""
    is_double = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if is_double else torch.float32


def num_copies(tensor: torch.Tensor) -> int:
    """How many ranks hold the same part of a tensor as this one."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if not isinstance(tensor, DTensor):
        return world
    mesh = tensor.device_mesh
    if mesh.size() != world:
        raise ConfigError(
            f"a parameter lives on {mesh.size()} of {world} ranks (pipeline or expert parallel); "
            "trimtab cannot add up its norm, give it by guard.record(grad_norm=...)"
        )
    parts = 1
    for dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            parts *= mesh.size(dimension)
    return world // parts
