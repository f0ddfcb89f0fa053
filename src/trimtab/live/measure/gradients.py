"""The gradients that are about to be applied: their norm, and whether they are still the same."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch.optim import Optimizer

from trimtab.live.measure.numbers import as_scalar
from trimtab.live.ranks.shards import norm_dtype, real
from trimtab.state.host_copy import local

SAMPLE = 16
"""Parameters whose gradients are compared from one record to the next."""

MANY_TENSORS, SMALL_ELEMENTS = 64, 4096
"""On a processor, more than 64 tensors of at most 4,096 elements are joined for their norm: a norm
of each costs more than the copy."""


class GradientNorm:
    """The sum of squares over the gradients of optimizers, right for every layout of ranks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: dict[torch.Tensor, float] = {}
        """How many ranks hold the same part of a parameter; 1 rank until ranks have met."""
        self._usual_copies = 1.0
        self._differ = False

    def set_copies(self, parameters: Sequence[torch.Tensor], copies: Sequence[float]) -> None:
        """Learn how many ranks hold the same part of each parameter."""
        self._copies = dict(zip(parameters, copies, strict=True))
        self._usual_copies = max(copies, default=1.0)
        self._differ = len(set(copies)) > 1

    def copies_of(self, parameter: torch.Tensor) -> float:
        """How many ranks hold the same part; a parameter added later is like most."""
        return self._copies.get(parameter, self._usual_copies)

    @property
    def is_whole_on_every_rank(self) -> bool:
        """Whether plain torch computes the same norm on every rank."""
        return not self._differ

    @torch.no_grad()
    def squares(self, optimizers: Iterable[Optimizer]) -> torch.Tensor | None:
        """This rank's share of the sum over ranks; None if nothing has a gradient.

        Over `param_groups` as they are now: what was added a moment ago counts.
        """
        # Looking a tensor up in a dict costs more than all else here: only where copies differ.
        copies, usual = self._copies if self._differ else {}, self._usual_copies
        parts: dict[tuple[torch.device, float], list[torch.Tensor]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if gradient is None:
                        continue
                    if type(gradient) is not torch.Tensor or gradient.layout != torch.strided:
                        gradient = real(local(gradient))
                    elif gradient.is_complex():
                        gradient = torch.view_as_real(gradient)
                    held = copies.get(parameter, usual) if copies else usual
                    key = (gradient.device, held)
                    same = parts.get(key)
                    if same is None:
                        parts[key] = [gradient]
                    else:
                        same.append(gradient)
        if not parts:
            return None
        totals = [
            as_scalar(_sum_of_squares(tensors) / copies, self._device)
            for (_, copies), tensors in parts.items()
        ]
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum()


def _sum_of_squares(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(tensors) > MANY_TENSORS and tensors[0].device.type == "cpu":
        small = [tensor for tensor in tensors if tensor.numel() <= SMALL_ELEMENTS]
        if len(small) > MANY_TENSORS and len({tensor.dtype for tensor in small}) == 1:
            joined = torch._C._nn.flatten_dense_tensors(small)
            tensors = [t for t in tensors if t.numel() > SMALL_ELEMENTS] + [joined]
    norms = torch._foreach_norm(tensors, 2.0, dtype=norm_dtype(*tensors))
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total.square()


class Change(Enum):
    """What has become of gradients since they were last looked at."""

    NONE = "none"
    GREW = "grew"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Mark:
    """Gradients by identity and version.

    Weak references to some of them make sure that a new tensor in the place of an old one is never
    taken for it; they keep no memory.
    """

    versions: list[tuple[int, int] | None]
    references: "dict[int, weakref.ref[torch.Tensor]]"

    def are_gone(self) -> bool:
        """Whether some of the gradients do not exist any more."""
        return any(reference() is None for reference in self.references.values())


NO_GRADIENTS = Mark([], {})


def mark(parameters: Iterable[torch.Tensor]) -> Mark:
    """The present gradients of parameters."""
    gradients = [parameter.grad for parameter in parameters]
    versions = [None if g is None else (id(g), g._version) for g in gradients]
    places = [place for place, version in enumerate(versions) if version is not None]
    some = places[:: max(len(places) // SAMPLE, 1)]
    return Mark(versions, {at: weakref.ref(g) for at in some if (g := gradients[at]) is not None})


def compare(before: Mark, now: Mark) -> Change:
    """How gradients have changed between two marks of the same parameters."""
    if before.are_gone():
        return Change.REPLACED
    if before.versions == now.versions:
        return Change.NONE
    for old, new in zip(before.versions, now.versions, strict=True):
        if old is not None and (new is None or old[0] != new[0]):
            return Change.REPLACED
    return Change.GREW


def without(now: Mark, used: Mark) -> Mark:
    """A mark in which gradients that an optimizer has used already count as none."""
    if not used.versions:
        return now
    gone = {at for at, reference in used.references.items() if reference() is None}
    versions = [
        None if old == new and at not in gone else new
        for at, (old, new) in enumerate(zip(used.versions, now.versions, strict=True))
    ]
    fresh = {at: ref for at, ref in now.references.items() if versions[at] is not None}
    return Mark(versions, fresh)


def sample(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Some of the parameters that get gradients, spread evenly."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    stride = max(len(trained) // SAMPLE, 1)
    return trained[::stride][:SAMPLE]
