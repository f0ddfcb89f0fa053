"""Loops of many kinds for tests of undo, and ways to harm or change what they train."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, optim

import trimtab
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import events_of
from trimtab.core.block import Event
from trimtab.core.config import Config
from trimtab.core.events import UNDO
from trimtab.state.host_copy import local

Edit = Callable[["Loop"], None]


@dataclass
class Loop:
    """A run with everything that an edit may want to reach."""

    model: nn.Module
    optimizers: list[optim.Optimizer]
    guard: Any = None
    scheduler: Any = None
    scaler: Any = None
    losses: list[float] = field(default_factory=list)
    states: list[list[torch.Tensor]] = field(default_factory=list)
    """All weights and moments after each step."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to write a loop."""

    optimizer: Callable[..., optim.Optimizer] = optim.AdamW
    options: dict[str, Any] = field(default_factory=dict)
    accumulate: int = 1
    uses_closure: bool = False
    scales: bool = False
    two_optimizers: bool = False
    keeps_grads: bool = False
    uses_steps: bool = False


KINDS = {
    "plain": Kind(),
    "fused": Kind(options={"fused": True}),
    "foreach": Kind(options={"foreach": True}),
    "amsgrad": Kind(options={"amsgrad": True}),
    "sgd": Kind(optimizer=optim.SGD, options={"momentum": 0.9}),
    "rmsprop": Kind(optimizer=optim.RMSprop),
    "adagrad": Kind(optimizer=optim.Adagrad),
    "nadam": Kind(optimizer=optim.NAdam),
    "accumulation": Kind(accumulate=4),
    "closure": Kind(uses_closure=True),
    "scaler": Kind(scales=True),
    "two optimizers": Kind(two_optimizers=True),
    "grads kept": Kind(keeps_grads=True),
    "guard.steps": Kind(uses_steps=True, accumulate=2),
}


def flip_weight(loop: Loop, bit: int = 28) -> None:
    flip_bit(next(loop.model.parameters()), bit, 7)


def flip_moment(loop: Loop) -> None:
    optimizer = loop.optimizers[0]
    state = next(iter(optimizer.state.values()))
    moment = next(v for v in state.values() if isinstance(v, torch.Tensor) and v.numel() > 1)
    flip_bit(moment, 30, 3)


def lose_weight(loop: Loop) -> None:
    """One weight becomes NaN, past torch's counters."""
    next(loop.model.parameters()).detach().numpy().reshape(-1)[5] = np.nan


def train(
    kind: Kind,
    run_dir: Path,
    mode: str,
    *,
    steps: int = 40,
    edits: Mapping[int, Edit] | None = None,
    with_batch_loss: bool = False,
    on_step: Callable[[Loop, int], None] = lambda loop, step: None,
    **options: Any,
) -> Loop:
    """Train by a loop of that kind; each edit is made between backward and `optimizer.step()`."""
    model = make_model()
    parameters = list(model.parameters())
    parts = [parameters[:3], parameters[3:]] if kind.two_optimizers else [parameters]
    optimizers = [kind.optimizer(part, lr=1e-2, **kind.options) for part in parts]
    loop = Loop(model, optimizers)
    loop.scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizers[0], steps)
    state = dict(options.pop("state", {}))
    if kind.scales:
        loop.scaler = state["scaler"] = torch.amp.GradScaler("cpu", init_scale=256.0)
    data = batches(steps * kind.accumulate)
    options.setdefault("config", Config().override({"recover.snapshot_every": 10}))
    if with_batch_loss:
        options["batch_loss"] = partial(loss_of, model)
    loop.guard = trimtab.watch(
        model, optimizers, run_dir=run_dir, mode=mode, state=state, **options
    )
    with loop.guard:
        shares = (
            loop.guard.steps(data, kind.accumulate)
            if kind.uses_steps
            else (data[at * kind.accumulate : (at + 1) * kind.accumulate] for at in range(steps))
        )
        for number, share in enumerate(shares):
            _step(loop, kind, list(share), (edits or {}).get(number))
            loop.scheduler.step()
            loop.states.append(_state(loop))
            on_step(loop, number)
    return loop


def _step(loop: Loop, kind: Kind, share: list[torch.Tensor], edit: Edit | None) -> None:
    total = []

    def backward() -> Any:
        for batch in share:
            loss = loss_of(loop.model, batch)
            loop.guard.record(loss=loss, tokens=batch.numel(), batch=batch)
            total.append(float(loss.detach()))
            scaled = loss / len(share)
            (loop.scaler.scale(scaled) if loop.scaler else scaled).backward()
        return loss

    if kind.uses_closure:
        for optimizer in loop.optimizers:
            if edit is not None:
                edit(loop)
            optimizer.step(backward)
    else:
        backward()
        if edit is not None:
            edit(loop)
        for optimizer in loop.optimizers:
            loop.scaler.step(optimizer) if loop.scaler else optimizer.step()
        if loop.scaler:
            loop.scaler.update()
    for optimizer in loop.optimizers:
        optimizer.zero_grad(set_to_none=not kind.keeps_grads)
    loop.losses.append(sum(total) / len(total))


def _state(loop: Loop) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = [*loop.model.parameters(), *loop.model.buffers()]
    for optimizer in loop.optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return [tensor.detach().clone() for tensor in tensors]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Return whether two states have the same bits."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


def undos(run_dir: Path) -> list[Event]:
    """Return the undos in a run's journal."""
    return events_of(run_dir, UNDO)


def refusals(run_dir: Path) -> list[Event]:
    return events_of(run_dir, "harm not undone")


def flip_bit(tensor: torch.Tensor, bit: int, element: int = 5) -> None:
    """Flip one bit of what this rank holds of a tensor as hardware does, past torch's counters."""
    held = local(tensor.detach()).detach()
    held.numpy().reshape(-1).view(np.uint32)[element] ^= np.uint32(1 << bit)
