"""FoldedClip: clips inside the update instead of in a pass of its own.

`torch.nn.utils.clip_grad_norm_` reads every gradient for the norm and writes every gradient back,
smaller. A fused optimizer can divide by `grad_scale` while it reads the gradient anyway, so here
only the norm is taken and the division waits for the update. Equal within rounding, and one pass
over the gradients less.

A clip belongs to the very gradients it was computed from, by identity and version. If they are
replaced, or their step is skipped, it is void. The first clips are carried out at once: folding
begins only when the user has left clipped gradients alone, and ends when they are changed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trimtab.live.measure.gradients import Change, Mark, compare, mark
from trimtab.live.optimizers import parameters_of
from trimtab.live.protect.discard import divide_gradients
from trimtab.live.ranks.shards import norm_dtype, real
from trimtab.live.shield import Shield, log
from trimtab.state.host_copy import local

_EPSILON = 1e-6
"""What torch adds to the norm before it divides."""

TRIAL_CLIPS = 3
"""Clips that are carried out at once, to see whether gradients are changed before the update: noise
or a limit on values must act on clipped gradients."""


@dataclass(frozen=True, slots=True)
class _Owed:
    """The clip of one optimizer's gradients."""

    parameters: list[torch.Tensor]
    gradients: Mark
    scale: torch.Tensor | None
    """None if they have been divided already."""


class FoldedClip:
    """Clips the gradients of a model, in the update where the optimizer can do it."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        can_fold: Callable[[Optimizer], bool],
        device: torch.device,
        shield: Shield,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._can_fold = can_fold
        self._shield = shield
        self._device = device
        self._owed: dict[Optimizer, _Owed] = {}
        self.num_untouched = 0
        """Clips whose gradients were left alone; far below 0 once they were not."""
        self.scale: torch.Tensor | None = None
        """What gradients are divided by in this step; None if nothing is clipped."""

    @torch.no_grad()
    def clip(self, max_norm: float) -> torch.Tensor:
        """Clip to `max_norm`; the norm from before is returned, as torch returns it."""
        self.settle_all()
        norm = None
        with self._shield.guarding("clip"):
            norm = total_norm(self._model.parameters())
        if norm is None:  # the gradients are clipped whatever fails here
            return torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)
        # A DTensor that a norm comes as is whole on every rank.
        whole = local(norm).to(self._device, torch.float32)
        scale = ((whole + _EPSILON) / max_norm).clamp(min=1.0)
        self.scale = scale
        folding: list[Optimizer] = []
        if self.num_untouched >= TRIAL_CLIPS:
            with self._shield.guarding("clip"):
                folding = [o for o in self._optimizers if self._can_fold(o)]
        known = set(parameters_of(folding))
        divide_gradients((p for p in self._model.parameters() if p not in known), scale)
        for optimizer in self._optimizers:
            having = [p for p in parameters_of([optimizer]) if p.grad is not None]
            if having:
                is_folded = optimizer in folding
                self._owed[optimizer] = _Owed(having, mark(having), scale if is_folded else None)
        return norm

    def pop(self, optimizer: Optimizer, *, may_fold: bool) -> torch.Tensor | None:
        """What the update of this optimizer is to divide by; None if its gradients are clipped."""
        owed = self._owed.pop(optimizer, None)
        if owed is None:
            return None
        change = compare(owed.gradients, mark(owed.parameters))
        if change is Change.REPLACED:
            return None
        if change is Change.GREW:
            if self.num_untouched >= TRIAL_CLIPS:
                log.info("trimtab: gradients change after clipping: it is not folded any more")
            self.num_untouched = -(2**31)
        self.num_untouched += 1
        if owed.scale is None or (may_fold and change is Change.NONE):
            return owed.scale
        divide_gradients(owed.parameters, owed.scale)
        return None

    def are_unchanged(self, optimizer: Optimizer) -> bool:
        """Whether the gradients are those that the last clip took the norm of."""
        owed = self._owed.get(optimizer)
        return owed is not None and compare(owed.gradients, mark(owed.parameters)) is Change.NONE

    def settle_all(self) -> None:
        """Clip now what was to be clipped in an update and has not changed since."""
        for optimizer, owed in self._owed.items():
            if owed.scale is not None and self.are_unchanged(optimizer):
                # As the update would have done it: other ranks may have, and must have the same.
                divide_gradients(owed.parameters, owed.scale)
        self._owed.clear()

    def forget(self) -> None:
        """The step is not taken: its clip is void."""
        self._owed.clear()
        self.scale = None


def total_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients as `get_total_norm` has it, but never in half precision."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.zeros((), dtype=torch.float32)
    parts = [real(grad) for grad in grads]
    dtype = norm_dtype(*parts)
    narrow = [part for part in parts if part.dtype != dtype]
    norms: Sequence[torch.Tensor]
    if any(isinstance(part, DTensor) for part in narrow):
        # One by one: in torch 2.15 `_foreach_norm` of DTensors takes no dtype.
        norms = [torch.linalg.vector_norm(part, 2.0, dtype=dtype) for part in parts]
    else:
        norms = torch._foreach_norm(parts, 2.0, dtype=dtype if narrow else None)
    together = torch.stack([norm.to(parts[0].device) for norm in norms])
    total: torch.Tensor = torch.linalg.vector_norm(together)
    return total
