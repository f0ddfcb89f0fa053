"""Discard: keeps an update of an optimizer from happening, and leaves no trace of having done so.

On the device: `found_inf`, the flag by which fused optimizers know an overflow. It must be exactly
0 or 1: torch applies the step at 2. On the host: gradients are taken away for the time of the step,
because no optimizer moves what has none. Zero gradients would still decay the weights and the
moments, and 0 x NaN is NaN.

What is set on an optimizer here is there only while its `step` runs: a flag that stays behind would
freeze training without a word.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.live.ranks.shards import local

_ABSENT = object()


@dataclass(slots=True)
class _Found:
    """What an optimizer had before it was touched."""

    attributes: dict[str, tuple[Any, torch.Tensor]] = field(default_factory=dict)
    """What was there, and what we put in its place."""
    gradients: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)
    """Of each group, without its parameters: some optimizers count their steps there."""


class Discard:
    """Touches optimizers for the time of one step, and puts back what it found."""

    def __init__(self) -> None:
        self._touched: dict[Optimizer, _Found] = {}

    def by_flag(
        self, optimizer: Optimizer, flag: torch.Tensor | None, scale: torch.Tensor | None
    ) -> None:
        """Let a fused optimizer decide by `flag`, and divide its gradients by `scale`.

        What GradScaler has put there counts too: its flag is OR-ed, its scale multiplied.
        """
        found = self._touched.setdefault(optimizer, _Found())
        if flag is not None:
            theirs = getattr(optimizer, "found_inf", None)
            either = flag if theirs is None else ((theirs + flag) > 0).to(flag.dtype)
            _set(optimizer, found, "found_inf", either)
        if scale is not None:
            theirs = getattr(optimizer, "grad_scale", None)
            _set(optimizer, found, "grad_scale", scale if theirs is None else scale * theirs)

    def by_hand(self, optimizer: Optimizer) -> None:
        """Take the gradients away, so that the optimizer moves nothing."""
        found = self._touched.setdefault(optimizer, _Found())
        for group in optimizer.param_groups:
            found.settings.append({k: v for k, v in group.items() if k != "params"})
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found.gradients[parameter] = parameter.grad
                    parameter.grad = None

    def undo(self, optimizer: Optimizer) -> None:
        """The step is over: put everything back."""
        found = self._touched.pop(optimizer, None)
        if found is None:
            return
        _restore(optimizer, found)
        for group, settings in zip(optimizer.param_groups, found.settings, strict=False):
            parameters = group["params"]
            group.clear()
            group.update(params=parameters, **settings)
        for parameter, gradient in found.gradients.items():
            parameter.grad = gradient

    def forget(self) -> None:
        """Clear what a step has left that never came to its end; its gradients are history."""
        for optimizer, found in self._touched.items():
            _restore(optimizer, found)
        self._touched.clear()


@torch.no_grad()
def divide_gradients(parameters: Iterable[torch.Tensor], by: torch.Tensor) -> None:
    """Make the gradients of parameters smaller, in place."""
    parts: dict[torch.device, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            part = local(parameter.grad)
            parts.setdefault(part.device, []).append(part)
    for device, tensors in parts.items():
        torch._foreach_div_(tensors, by.to(device))


def _set(optimizer: Optimizer, found: _Found, name: str, value: torch.Tensor) -> None:
    found.attributes[name] = (vars(optimizer).get(name, _ABSENT), value)
    setattr(optimizer, name, value)


def _restore(optimizer: Optimizer, found: _Found) -> None:
    for name, (before, ours) in found.attributes.items():
        # Somebody may have put a value of his own on top of ours; that one stays.
        if vars(optimizer).get(name) is not ours:
            continue
        if before is _ABSENT:
            delattr(optimizer, name)
        else:
            setattr(optimizer, name, before)
