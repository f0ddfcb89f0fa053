"""The part of a tensor that a rank holds, whole or sharded."""

import torch
from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The same without its graph, to copy from and into."""
    return local(tensor).detach()
