"""A set-up: one way to train, tried with and without a guard."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tests.kit.tiny import batches, loss_of, make_model
from torch import nn

STEPS = 12
BAD = 7

Factor = Callable[[int], float | None]
"""What the loss of a step is multiplied by; None leaves the step out."""


@dataclass(frozen=True)
class Learned:
    """What a run has learnt, in a form that can be compared and sent between processes."""

    digest: str
    is_finite: bool


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """One way to train."""

    name: str
    group: str
    train: Callable[..., Learned]
    """Called with `watch(model, optimizer, **options)` and a Factor."""
    package: str = ""
    """What it needs besides torch."""
    ranks: int = 1


def learned(tensors: Iterable[torch.Tensor]) -> Learned:
    """The digest of these tensors, to the last bit."""
    sums = hashlib.sha256()
    is_finite = True
    for tensor in tensors:
        value = tensor.detach()
        value = value.to_local() if hasattr(value, "to_local") else value
        value = value.to_dense() if value.is_sparse else value
        value = torch.view_as_real(value) if value.is_complex() else value
        is_finite = is_finite and bool(torch.isfinite(value).all())
        flat = value.contiguous().reshape(-1)
        sums.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return Learned(sums.hexdigest(), is_finite)


def state_of(model: nn.Module) -> Learned:
    """Parameters and buffers."""
    return learned([*model.parameters(), *model.buffers()])


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A plain loop around the tiny model; what is not given is as in the README."""

    optimizer: Callable[[Any], Any]
    """From a model to an optimizer, or several."""
    model: Callable[[], Any] = make_model
    loss: Callable[[Any, torch.Tensor], torch.Tensor] = loss_of
    data: Callable[[int], list[torch.Tensor]] = batches
    accumulate: int = 1
    clip: str = ""
    """Who clips: guard, torch or nobody."""
    autocast: torch.dtype | None = None
    scaler: str = ""
    """given: passed to watch; hidden: only used."""
    wrap: Callable[[Any], Any] | None = None
    """Around the model once it is watched: compile."""
    after_step: Callable[[Any], None] | None = None
    closure: bool = False
    record_last: bool = False
    zero_in_place: bool = False
    step_loop: bool = False

    def __call__(self, watch: Callable[..., Any], factor: Factor) -> Learned:
        """Train; return what was learnt."""
        model = self.model()
        optimizer = self.optimizer(model)
        optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if self.scaler else None
        options = {"state": {"scaler": scaler}} if self.scaler == "given" else {}
        guard = watch(model, optimizer, **options)
        call = self.wrap(model) if self.wrap else model
        data = self.data(STEPS * self.accumulate)
        with guard:
            numbers = self._numbers(guard, data)
            for step in numbers:
                by = factor(step)
                if by is None:
                    continue
                micro = data[step * self.accumulate : (step + 1) * self.accumulate]
                for one in optimizers:
                    one.zero_grad(set_to_none=not self.zero_in_place)
                torch.manual_seed(1000 + step)
                backward = partial(self._backward, guard, call, micro, by, scaler)
                if self.closure:
                    optimizers[0].step(backward)
                else:
                    backward()
                    self._step(guard, model, optimizers, scaler)
                if self.after_step:
                    self.after_step(model)
        return state_of(model)

    def _numbers(self, guard: Any, data: list[torch.Tensor]) -> Iterable[int]:
        if not self.step_loop:
            yield from range(STEPS)
            return
        for number, step in enumerate(guard.steps(data, accumulate=self.accumulate)):
            for _ in step:
                pass
            yield number

    def _backward(
        self, guard: Any, call: Any, micro: list[torch.Tensor], by: float, scaler: Any
    ) -> torch.Tensor:
        for batch in micro:
            context: Any = contextlib.nullcontext()
            if self.autocast is not None:
                context = torch.autocast("cpu", self.autocast)
            with context:
                loss = self.loss(call, batch) * by
            if not self.record_last:
                guard.record(loss=loss, tokens=batch.numel())
            part = loss / len(micro)
            (scaler.scale(part) if scaler else part).backward()
            if self.record_last:
                guard.record(loss=loss, tokens=batch.numel())
        return loss

    def _step(self, guard: Any, model: Any, optimizers: list[Any], scaler: Any) -> None:
        if scaler and self.clip:
            for one in optimizers:
                scaler.unscale_(one)
        if self.clip == "guard":
            guard.clip_grad_norm_(0.5)
        elif self.clip == "torch":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        elif self.clip == "value":
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        for one in optimizers:
            if scaler:
                scaler.step(one)
            else:
                one.step()
        if scaler:
            scaler.update()
