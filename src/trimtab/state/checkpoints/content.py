"""What a checkpoint holds, by parameter names: any number of ranks and any layout can read it.

Loading writes into the live tensors. What is not a tensor of the model or of an optimizer (options
of the groups, schedulers, scaler, the user's `state`) is put back by `put_content` after that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim import Optimizer

from trimtab.state.shards import detached
from trimtab.state.training_state import TrainingState

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


def find_nonfinite(state: TrainingState) -> str:
    """What of the trained parameters and the optimizer state is not finite; empty if nothing is.

    Buffers may hold infinities on purpose: masks of attention do.
    """
    named = [(name, p) for name, p in state.model.named_parameters() if p.requires_grad]
    for number, states in enumerate(state.optimizer_state()):
        for place, values in states.items():
            for name, value in values.items():
                named.append((f"{name} of parameter {place} of optimizer {number}", value))
    floating = [
        (name, detached(value))
        for name, value in named
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    ]
    floating = [(name, value) for name, value in floating if value.numel()]  # an empty shard
    if not floating:
        return ""
    largest = torch._foreach_norm([value for _, value in floating], float("inf"))
    finite = torch.stack([value.to("cpu", torch.float64) for value in largest]).isfinite()
    bad = [name for (name, _), is_finite in zip(floating, finite.tolist(), strict=True)
           if not is_finite]  # fmt: skip
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
