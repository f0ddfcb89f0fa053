"""The checkpointer for torch's distributed checkpoints (DCP)."""

import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save, save


class DcpCheckpointer:
    """`torch.distributed.checkpoint.save`, `async_save` and `load`, on all ranks."""

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self._group = process_group

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the state: each rank its own shards."""
        save(state, checkpoint_id=folder, process_group=self._group, no_dist=_alone())

    def save_in_background(self, folder: Path, state: dict[str, Any]) -> Future[Any]:
        """Copy the state to host memory, and write it in a thread."""
        response = async_save(
            state, checkpoint_id=folder, process_group=self._group, no_dist=_alone()
        )
        if isinstance(response, AsyncSaveResponse):
            response.staging_completion.result()
            return response.upload_completion
        return response

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read into the tensors of the state; a different number of ranks may have written it."""
        load(state, checkpoint_id=folder, process_group=self._group, no_dist=_alone())


def _alone() -> bool:
    """Whether there is no process group.

    DCP warns of that although `no_dist` says it, also in its thread: a filter for a while would not
    reach that one.
    """
    if dist.is_initialized():
        return False
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    return True
