"""What a checkpoint holds, by parameter names: any number of ranks and any layout can read it.

Loading writes into the live tensors. What is not a tensor of the model or of an optimizer (options
of the groups, schedulers, scaler, the user's `state`) is put back by `put_content` after that.
"""

import inspect
import math
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from trimtab.core.errors import RestoreError
from trimtab.core.plugins import describe_error
from trimtab.state.host_copy import detached
from trimtab.state.training_state import TrainingState

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


_NAMES = "params"


def content_of(state: TrainingState) -> dict[str, Any]:
    """The state as a nested dict; its tensors are the live ones.

    Optimizer state that does not exist yet is made, with zeros, as a fresh process needs it.
    """
    with _without_hooks(state.optimizers):
        model, optimizers = get_state_dict(state.model, state.optimizers)
    return {
        "model": model,
        "optimizers": optimizers,
        "schedulers": {str(n): s.state_dict() for n, s in enumerate(state.schedulers)},
        "scaler": {} if state.scaler is None else state.scaler.state_dict(),
        "state": {name: part.state_dict() for name, part in state.state.items()},
    }


def put_content(state: TrainingState, content: dict[str, Any]) -> None:
    """Put back what was loaded besides tensors; options last: schedulers do not write them."""
    for number, scheduler in enumerate(state.schedulers):
        scheduler.load_state_dict(content["schedulers"][str(number)])
    if state.scaler is not None:
        state.scaler.load_state_dict(content["scaler"])
    for name, part in state.state.items():
        part.load_state_dict(content["state"][name])
    groups = content["optimizers"]["param_groups"]
    live = [group for optimizer in state.optimizers for group in optimizer.param_groups]
    for group, saved in zip(live, groups, strict=True):
        for name, value in saved.items():
            if name != _NAMES:
                group[name] = value


def buffers_left_out(state: TrainingState, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The buffers that `state_dict` leaves out, by names without the wrappers around the model."""
    known = content["model"].keys()
    named = ((_plain_name(name), buffer) for name, buffer in state.model.named_buffers())
    return {name: detached(buffer) for name, buffer in named if name not in known}


def find_nonfinite(state: TrainingState, *, trains: bool) -> str:
    """What of the trained parameters and the optimizer state is not finite; empty if nothing is.

    Buffers may hold infinities on purpose: masks of attention do. So may parameters with which a
    run trains, as its loss and its gradients are finite: the bias of a class that is switched off.
    """
    named = [(name, p) for name, p in state.model.named_parameters() if p.requires_grad]
    may_be_infinite = {name for name, _ in named} if trains else set()
    for number, optimizer in enumerate(state.optimizers):
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for index, parameter in enumerate(held):
            # `state` is a defaultdict: asking for a missing entry would make one.
            for name, value in optimizer.state.get(parameter, {}).items():
                named.append((f"{name} of parameter {index} of optimizer {number}", value))
    floating = [
        (name, detached(value))
        for name, value in named
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    ]
    floating = [(name, value) for name, value in floating if value.numel()]  # an empty shard
    if not floating:
        return ""
    largest = torch._foreach_norm([value for _, value in floating], float("inf"))
    sizes = torch.stack([value.to("cpu", torch.float64) for value in largest]).tolist()
    bad = [name for (name, _), size in zip(floating, sizes, strict=True)
           if size != size or (size == math.inf and name not in may_be_infinite)]  # fmt: skip
    return f"{len(bad)} tensors are not finite, first {bad[0]}" if bad else ""


@contextmanager
def _without_hooks(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Without the hooks of a step: torch makes missing state by a step with a rate of zero."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    found = [(optimizer, name, getattr(optimizer, name)) for optimizer in optimizers
             for name in names]  # fmt: skip
    try:
        for optimizer, name, hooks in found:
            setattr(optimizer, name, type(hooks)())
        yield
    finally:
        for optimizer, name, hooks in found:
            setattr(optimizer, name, hooks)


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))
