"""Trace: all that a forward pass may change about a run, and how it is undone.

Experiments and the trial of states compute losses of the user's batches with the user's function in
the middle of a step. What that moves is put back, also if it raises: buffers, modes, attributes,
gradients, hooks, random numbers and settings of torch; and that function may step no optimizer.
"""

import copy
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trimtab.state.contents import Contents
from trimtab.state.host_copy import detached, version_of
from trimtab.state.rng import get_random_state, set_random_state

_OF_DDP = ("require_forward_param_sync", "modules_buffers", "named_module_buffers")
_USUAL = ("training", *_OF_DDP)
"""Attributes that a forward pass may set: the mode, and what DDP notes when it sends buffers."""


class Trace:
    """All that a forward pass may change, as it was before."""

    def __init__(self, model: nn.Module) -> None:
        self._random = get_random_state()
        self._settings = _TorchSettings()
        self._buffers = {name: (b, b.detach().clone()) for name, b in model.named_buffers()}
        weights = [_Weight(name, parameter) for name, parameter in model.named_parameters()]
        tensors = [*model.parameters(), *model.buffers()]
        self._contents = Contents(model, nn.Module, without=tensors)
        if not self._contents.is_complete:
            raise ValueError("the model holds too many objects to be put back")
        self._weights = weights

    def restore(self) -> str | None:
        """Restore what can be restored; return the name of the first thing that has moved besides.

        Buffers, modes, private attributes and random numbers move in any forward pass and are no
        surprise. Each part is restored even if another cannot be.
        """
        moved: list[str] = []
        with ExitStack() as parts:  # the last comes first
            parts.callback(self._restore_weights, moved)
            parts.callback(self._restore_contents, moved)
            parts.callback(self._settings.restore)
            parts.callback(self._restore_buffers)
            parts.callback(set_random_state, self._random)
        return moved[0] if moved else None

    def _restore_buffers(self) -> None:
        for buffer, saved in self._buffers.values():
            # Past autograd: a graph that is not used up yet may hold the buffer.
            buffer.data.copy_(saved)

    def _restore_contents(self, moved: list[str]) -> None:
        for name in self._contents.restore():
            *_, last = parts = name.split(".")
            is_usual = last in _USUAL or any(part.startswith("_") for part in parts)
            if name not in self._buffers and not is_usual:
                moved.append(name)

    def _restore_weights(self, moved: list[str]) -> None:
        moved += [weight.name for weight in self._weights if weight.restore()]


class _Weight:
    """A parameter as it was; its values are not copied."""

    _HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        self.name = name
        self.parameter = parameter
        self._data = parameter.data
        self._requires_grad = parameter.requires_grad
        self._mark = _mark(parameter)
        found = {name: getattr(parameter, name, None) for name in self._HOOKS}
        self._hooks = {name: (hooks, copy.copy(hooks)) for name, hooks in found.items()}

    def restore(self) -> bool:
        """Put back all but the values; return whether something had moved."""
        parameter = self.parameter
        has_moved = _mark(parameter) != self._mark
        has_moved |= parameter.requires_grad != self._requires_grad
        if detached(parameter).data_ptr() != detached(self._data).data_ptr():
            parameter.data = self._data
        parameter.requires_grad_(self._requires_grad)
        for name, (hooks, saved) in self._hooks.items():
            if hooks is not None:  # the same dict: handles remove their hooks from it
                hooks.clear()
                hooks.update(saved)
            elif getattr(parameter, name, None) is not None:
                setattr(parameter, name, None)
        return has_moved


class _TorchSettings:
    """What is set for all of torch: the default dtype, and autocast."""

    def __init__(self) -> None:
        self._dtype = torch.get_default_dtype()
        self._has_cache = torch.is_autocast_cache_enabled()
        accelerator = torch.accelerator.current_accelerator()
        devices = {"cpu", "cpu" if accelerator is None else accelerator.type}
        self._autocast = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in devices
        }

    def restore(self) -> None:
        torch.set_default_dtype(self._dtype)
        torch.set_autocast_cache_enabled(self._has_cache)
        for device, (is_enabled, dtype) in self._autocast.items():
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    part = detached(tensor)
    return version_of(part), part.data_ptr()


@contextmanager
def without_trace(model: nn.Module) -> Iterator[list[str]]:
    """Run forward passes of a model in here; the list is given the name of what they have moved
    besides, which has been restored, too."""
    refused: list[str] = []
    # Torch restores its random numbers whatever becomes of our own trace.
    with torch.random.fork_rng(range(torch.accelerator.device_count())):
        trace = Trace(model)
        gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        refusal = register_optimizer_step_pre_hook(_RefuseStep())
        try:
            for parameter, _ in gradients:
                parameter.grad = None  # a backward pass would add to it in place
            yield refused
        finally:
            refusal.remove()
            try:
                moved = trace.restore()
            finally:
                for parameter, gradient in gradients:
                    parameter.grad = gradient
            if moved:
                refused.append(moved)


class _RefuseStep:
    """Refuses a step in the thread that made this; another thread may train a model of its own."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __call__(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            raise RuntimeError("batch_loss must not call optimizer.step(): it is for experiments")
