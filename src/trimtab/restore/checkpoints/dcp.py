"""The checkpointer for torch's distributed checkpoints (DCP)."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


class DcpCheckpointer:
    """`torch.distributed.checkpoint.save` and `load`, on all ranks; one process needs no group."""

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self._group = process_group

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the state: each rank its own shards."""
        with _quiet():
            save(state, checkpoint_id=folder, process_group=self._group, no_dist=_alone())

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read into the tensors of the state; a different number of ranks may have written it."""
        with _quiet():
            load(state, checkpoint_id=folder, process_group=self._group, no_dist=_alone())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without DCP's warning that a process without a group is alone: `no_dist` says so already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _alone() -> bool:
    return not dist.is_initialized()
