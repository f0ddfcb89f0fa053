"""Whether a tensor or module is sharded by torch, asked without importing torch's code for it.

Importing DTensor and FSDP takes a second, and nothing is of a class that nobody has imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_dtensor(thing: object) -> TypeIs[DTensor]:
    """Return whether a tensor is sharded, as those of FSDP2 and of tensor parallelism are."""
    return isinstance(thing, _loaded("torch.distributed.tensor", "DTensor"))


def is_fsdp1(thing: object) -> TypeIs[FullyShardedDataParallel]:
    """Return whether a module is wrapped by FSDP1."""
    return isinstance(thing, _loaded("torch.distributed.fsdp", "FullyShardedDataParallel"))


def is_fsdp2(thing: object) -> TypeIs[FSDPModule]:
    """Return whether a module is sharded by `fully_shard`."""
    return isinstance(thing, _loaded("torch.distributed.fsdp", "FSDPModule"))


def _loaded(module: str, name: str) -> Any:
    """Return a class if its module is loaded; otherwise what nothing is an instance of."""
    return getattr(sys.modules.get(module), name, ())
