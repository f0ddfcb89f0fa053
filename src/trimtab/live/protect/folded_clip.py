"""FoldedClip: clips inside the update instead of in a pass of its own.

`torch.nn.utils.clip_grad_norm_` reads every gradient for the norm and writes every gradient back,
smaller. A fused optimizer can divide by `grad_scale` while it reads the gradient anyway, so here
only the norm is taken and the division waits for the update. Equal within rounding, and one pass
over the gradients less.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.live.optimizers import parameters_of
from trimtab.live.protect.discard import divide_gradients
from trimtab.live.ranks.shards import local, norm_dtype
from trimtab.live.shield import Shield

_EPSILON = 1e-6
"""What torch adds to the norm before it divides."""


class FoldedClip:
    """Clips the gradients of a model, in the update where the optimizer can do it."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        folds: Callable[[Optimizer], bool],
        device: torch.device,
        shield: Shield,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._folds = folds
        self._shield = shield
        self._device = device
        self._waiting: set[Optimizer] = set()
        """Who has not divided yet."""
        self._scale = torch.ones((), device=device)
        self._is_clipped = False
        self._others: dict[tuple[frozenset[Optimizer], int], list[torch.Tensor]] = {}

    @property
    def scale(self) -> torch.Tensor | None:
        """What gradients are divided by in the step at hand; None if nobody clips."""
        return self._scale if self._is_clipped else None

    @torch.no_grad()
    def clip(self, max_norm: float) -> torch.Tensor:
        """Clip to `max_norm`; the norm from before is returned, as torch returns it."""
        self.settle()
        norm = total_norm(self._model.parameters())
        # A DTensor that a norm comes as is whole on every rank.
        whole = local(norm).to(self._device, torch.float32)
        self._scale = ((whole + _EPSILON) / max_norm).clamp(min=1.0)
        folding: frozenset[Optimizer] = frozenset()
        with self._shield.guarding("clip"):
            folding = frozenset(filter(self._folds, self._optimizers))
        divide_gradients(self._not_folded(folding), self._scale)
        self._waiting, self._is_clipped = set(folding), True
        return norm

    def waits(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer still has to divide its gradients by `scale`."""
        return optimizer in self._waiting

    def done(self, optimizer: Optimizer) -> None:
        """This optimizer has had its update."""
        self._waiting.discard(optimizer)

    def settle(self, optimizer: Optimizer | None = None) -> None:
        """Clip now what was to be clipped in an update; of one optimizer, or of all."""
        for one in self._waiting & ({optimizer} if optimizer else self._waiting):
            # As the update would have done it: other ranks may have, and must have the same bits.
            divide_gradients(parameters_of([one]), self._scale)
            self._waiting.discard(one)

    def forget(self) -> None:
        """The step is over."""
        self._is_clipped = False

    def _not_folded(self, folding: frozenset[Optimizer]) -> Sequence[torch.Tensor]:
        key = (folding, sum(len(optimizer.param_groups) for optimizer in folding))
        if key not in self._others:
            folded = set(parameters_of(folding))
            self._others[key] = [p for p in self._model.parameters() if p not in folded]
        return self._others[key]


def total_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients as `get_total_norm` has it, but never in half precision."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    norms = torch._foreach_norm(grads, 2.0, dtype=norm_dtype(*grads))
    together = torch.stack([norm.to(grads[0].device) for norm in norms])
    total: torch.Tensor = torch.linalg.vector_norm(together)
    return total
