"""The checkpointer for torch's distributed checkpoints (DCP)."""

import inspect
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.utils._pytree import tree_map_only

from trimtab.core.errors import RestoreError
from trimtab.core.plugins import describe_error

_TAKES_NO_DIST = "no_dist" in inspect.signature(save).parameters  # from torch 2.7 on


class DcpCheckpointer:
    """`torch.distributed.checkpoint.save`, `async_save` and `load`, on all ranks."""

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self._group = process_group

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the state: each rank its own shards."""
        with _as_exception():
            save(state, checkpoint_id=folder, process_group=self._group, **_no_dist())

    def save_in_background(self, folder: Path, state: dict[str, Any]) -> Future[Any]:
        """Copy the state to host memory, and write it in a thread."""
        if not _TAKES_NO_DIST:  # torch 2.6 copies only what is on an accelerator
            state = tree_map_only(Tensor, torch.clone, state)
        with _as_exception():
            started = async_save(
                state, checkpoint_id=folder, process_group=self._group, **_no_dist()
            )
            if isinstance(started, Future):
                return _with_exception(started)
            started.staging_completion.result()  # not with torch 2.6
            return _with_exception(started.upload_completion)

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read into the tensors of the state; a different number of ranks may have written it."""
        with _as_exception():
            load(state, checkpoint_id=folder, process_group=self._group, **_no_dist())


@contextmanager
def _as_exception() -> Iterator[None]:
    """Raise RestoreError for DCP's own error, which is no Exception: it would pass every handler,
    and end the run."""
    try:
        yield
    except CheckpointException as error:
        raise _describe(error) from error


def _with_exception(written: Future[Any]) -> Future[Any]:
    """The same for what happens in the background."""
    result: Future[Any] = Future()

    def on_end(ended: Future[Any]) -> None:
        error = ended.exception()
        if error is None:
            result.set_result(ended.result())
        elif isinstance(error, CheckpointException):
            result.set_exception(_describe(error))
        else:
            result.set_exception(error)

    written.add_done_callback(on_end)
    return result


def _describe(error: CheckpointException) -> RestoreError:
    """The first of the failures of the ranks."""
    rank, (failure, _) = next(iter(error.failures.items()))
    return RestoreError(f"rank {rank}: {describe_error(failure)}")


def _no_dist() -> dict[str, Any]:
    """The argument that says whether there is no process group; torch 2.6 finds out by itself.

    DCP warns of that although `no_dist` says it, also in its thread: a filter for a while would not
    reach that one.
    """
    is_alone = not dist.is_initialized()
    if is_alone:
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
    return {"no_dist": is_alone} if _TAKES_NO_DIST else {}
