"""The gradients that are about to be applied: their norm, and whether they are still the same."""

import weakref
from collections.abc import Iterable, Sequence
from enum import Enum

import torch
from torch.optim import Optimizer

from trimtab.live.measure.numbers import as_scalar
from trimtab.live.ranks.shards import local, norm_dtype, real

SAMPLE = 16
"""Parameters whose gradients are compared from one record to the next."""


class GradientNorm:
    """The sum of squares over the gradients of optimizers, right for every layout of ranks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[torch.Tensor, float] = {}
        """How many ranks hold the same part of a parameter; 1 rank until ranks have met."""
        self._usual_copies = 1.0

    def set_copies(self, parameters: Sequence[torch.Tensor], copies: Sequence[float]) -> None:
        """Learn how many ranks hold the same part of each parameter."""
        self._copies = dict(zip(parameters, copies, strict=True))
        self._usual_copies = max(copies, default=1.0)

    def copies_of(self, parameter: torch.Tensor) -> float:
        """How many ranks hold the same part; a parameter added later is like most."""
        return self._copies.get(parameter, self._usual_copies)

    @property
    def is_whole_on_every_rank(self) -> bool:
        """Whether plain torch computes the same norm on every rank."""
        return len(set(self._copies.values())) <= 1

    @torch.no_grad()
    def squares(self, optimizers: Iterable[Optimizer]) -> torch.Tensor | None:
        """This rank's share of the sum over ranks; None if nothing has a gradient.

        Over `param_groups` as they are now: what was added a moment ago counts.
        """
        parts: dict[tuple[torch.device, float], list[torch.Tensor]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if gradient is not None:
                        part = real(local(gradient))
                        key = (part.device, self.copies_of(parameter))
                        parts.setdefault(key, []).append(part)
        if not parts:
            return None
        totals = [
            as_scalar(_sum_of_squares(tensors) / copies, self._device)
            for (_, copies), tensors in parts.items()
        ]
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum()


def _sum_of_squares(tensors: list[torch.Tensor]) -> torch.Tensor:
    norms = torch._foreach_norm(tensors, 2.0, dtype=norm_dtype(*tensors))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total.square()


class Change(Enum):
    """What has become of gradients since they were last looked at."""

    NONE = "none"
    GREW = "grew"
    REPLACED = "replaced"


Mark = list[tuple["weakref.ref[torch.Tensor] | None", int]]
"""Gradients by identity and version; a tensor that is gone can never be mistaken for another."""


def mark(parameters: Iterable[torch.Tensor]) -> Mark:
    """The present gradients of parameters."""
    return [
        (None, 0) if p.grad is None else (weakref.ref(p.grad), p.grad._version) for p in parameters
    ]


def compare(before: Mark, now: Mark) -> Change:
    """How gradients have changed between two marks of the same parameters."""
    change = Change.NONE
    for (old, old_version), (new, new_version) in zip(before, now, strict=True):
        if old is not None and (new is None or old() is None or old() is not new()):
            return Change.REPLACED
        if (old is None) != (new is None) or old_version != new_version:
            change = Change.GREW
    return change


def without(now: Mark, used: Mark) -> Mark:
    """A mark in which gradients that an optimizer has used already count as none."""
    return [
        (None, 0) if old[0] is not None and new[0] is not None and _same(old, new) else new
        for old, new in zip(used, now, strict=True)
    ]


def _same(
    one: tuple["weakref.ref[torch.Tensor] | None", int],
    other: tuple["weakref.ref[torch.Tensor] | None", int],
) -> bool:
    if one[0] is None or other[0] is None:
        return one[0] is other[0]
    return one[0]() is other[0]() and one[1] == other[1]


def sample(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Some of the parameters that get gradients, spread evenly."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    stride = max(len(trained) // SAMPLE, 1)
    return trained[::stride][:SAMPLE]
