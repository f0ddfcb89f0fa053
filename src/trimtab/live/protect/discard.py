"""Discard: keeps an update of an optimizer from happening, and leaves no trace of having done so.

On the device: `found_inf`, the flag by which fused optimizers know an overflow. It must be exactly
0 or 1: torch applies the step at 2. On the host: gradients are removed for the time of the step,
because an optimizer moves nothing that has none (`fused_support` checks that). Zero gradients would
still decay the weights and the moments, and 0 x NaN is NaN.

What is set on an optimizer here is there only while its `step` runs: a flag that stayed would
freeze training in silence. torch calls no post-hook after a `step` that raised, so what it left is
removed before the next one begins (`forget`). `BufferGuard` restores what the forward pass of a
discarded step wrote into buffers: BatchNorm folds every batch into its running statistics long
before a gate can decide, and a NaN there stays for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.state.contents import Contents
from trimtab.state.host_copy import local, version_of
from trimtab.state.training_state import parameters_of

_ABSENT = object()

_overrides: "WeakKeyDictionary[Optimizer, dict[str, list[_Override]]]" = WeakKeyDictionary()
"""What guards have set on optimizers, the oldest first: two guards may watch one optimizer."""


@dataclass(slots=True, eq=False)
class _Override:
    """A value in place of an attribute."""

    before: Any
    value: torch.Tensor


@dataclass(slots=True)
class _Found:
    """What an optimizer had before it was touched."""

    overrides: dict[str, _Override] = field(default_factory=dict)
    gradients: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)
    contents: Contents | None = None


class Discard:
    """Touches optimizers for the time of one step, and puts back what it found."""

    def __init__(self) -> None:
        self._touched: dict[Optimizer, _Found] = {}

    @property
    def is_set(self) -> bool:
        return bool(self._touched)

    def via_found_inf(
        self, optimizer: Optimizer, flag: torch.Tensor, scale: torch.Tensor | None
    ) -> None:
        """Let a fused optimizer decide by `flag`, and divide its gradients by `scale`.

        What GradScaler has put there counts too: its flag is OR-ed, its scale multiplied.
        """
        found = self._touched.setdefault(optimizer, _Found())
        theirs = getattr(optimizer, "found_inf", None)
        either = flag if theirs is None else ((theirs + flag) > 0).to(flag.dtype)
        found.overrides["found_inf"] = _set(optimizer, "found_inf", either)
        if scale is not None:
            theirs = getattr(optimizer, "grad_scale", None)
            product = scale if theirs is None else scale * theirs
            found.overrides["grad_scale"] = _set(optimizer, "grad_scale", product)

    def via_missing_grads(self, optimizer: Optimizer) -> Contents:
        """Take the gradients away, so that the optimizer moves nothing."""
        found = self._touched.setdefault(optimizer, _Found())
        for parameter in parameters_of([optimizer]):
            if parameter.grad is not None:
                found.gradients[parameter] = parameter.grad
                parameter.grad = None
        contents = Contents(optimizer, Optimizer, without=parameters_of([optimizer]))
        found.contents = contents
        return contents

    def undo(self, optimizer: Optimizer) -> None:
        """Put everything back at the end of a step."""
        found = self._touched.get(optimizer)
        try:
            self.forget(optimizer)
        finally:
            if found is not None:
                for parameter, gradient in found.gradients.items():
                    if parameter.grad is None:  # else the step has made one of its own
                        parameter.grad = gradient
                if found.contents is not None:
                    found.contents.restore()

    def forget(self, *optimizers: Optimizer) -> None:
        """Clear what is left of steps that never came to their end, by default of all.

        Their gradients are history, so that a bad step stays discarded however it is tried again;
        and what the optimizers hold may have been changed by the user since.
        """
        for optimizer in optimizers or tuple(self._touched):
            found = self._touched.pop(optimizer, None)
            for name, override in found.overrides.items() if found is not None else ():
                _restore(optimizer, name, override)


@torch.no_grad()
def divide_gradients(parameters: Iterable[torch.Tensor], by: torch.Tensor) -> None:
    """Make the gradients of parameters smaller, in place."""
    parts: dict[torch.device, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            part = local(parameter.grad)
            if part.is_inference():  # it cannot be written to
                parameter.grad = parameter.grad / by.to(part.device)
            elif part.is_sparse:
                part._values().div_(by.to(part.device))
            else:
                parts.setdefault(part.device, []).append(part)
    for device, tensors in parts.items():
        torch._foreach_div_(tensors, by.to(device))


def _set(optimizer: Optimizer, name: str, value: torch.Tensor) -> _Override:
    override = _Override(vars(optimizer).get(name, _ABSENT), value)
    _overrides.setdefault(optimizer, {}).setdefault(name, []).append(override)
    setattr(optimizer, name, value)
    return override


def _restore(optimizer: Optimizer, name: str, override: _Override) -> None:
    stack = _overrides.get(optimizer, {}).get(name, [])
    if override not in stack:
        return
    place = stack.index(override)
    stack.remove(override)
    if place < len(stack):  # another guard has put its value on top; it will put back ours
        stack[place].before = override.before
    elif vars(optimizer).get(name) is override.value:  # a value that the user set on top stays
        if override.before is _ABSENT:
            delattr(optimizer, name)
        else:
            setattr(optimizer, name, override.before)


MAX_BUFFER_BYTES = 64 * 2**20
"""Of the copies; the smallest buffers come first. Running statistics are far smaller."""


class BufferGuard:
    """Copies of a model's buffers as of the last step that was applied."""

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        room = MAX_BUFFER_BYTES
        buffers = [b for b in model.buffers() if isinstance(b, torch.Tensor)]
        for buffer in sorted(buffers, key=lambda b: b.numel() * b.element_size()):
            room -= buffer.numel() * buffer.element_size()
            if room < 0:
                break
            is_plain = not buffer.is_sparse and type(local(buffer)) in (torch.Tensor, nn.Buffer)
            if is_plain and not buffer.is_inference():
                self._kept.append((buffer, local(buffer).detach().clone()))
        self._versions = [version_of(buffer) for buffer, _ in self._kept]
        # Fused kernels write running statistics without counting a version.
        silent = [m for m in model.modules() if getattr(m, "track_running_stats", False)]
        self._always = {id(buffer) for module in silent for buffer in module.buffers()}

    @property
    def has_any(self) -> bool:
        return bool(self._kept)

    @torch.no_grad()
    def settle(self, is_discarded: torch.Tensor) -> None:
        """The step is decided: take back what it wrote, or keep it from now on."""
        for place, (buffer, kept) in enumerate(self._kept):
            if version_of(buffer) == self._versions[place] and id(buffer) not in self._always:
                continue
            # Past autograd: the graph of another optimizer of a GAN may hold this buffer.
            now = local(buffer).data
            flag = is_discarded.to(now.device) > 0
            kept.copy_(torch.where(flag, kept, now))
            now.copy_(kept)
            self._versions[place] = version_of(buffer)

    @torch.no_grad()
    def renew(self) -> None:
        """The model has returned to an earlier step: keep its buffers as they are now."""
        for place, (buffer, kept) in enumerate(self._kept):
            kept.copy_(local(buffer))
            self._versions[place] = version_of(buffer)
