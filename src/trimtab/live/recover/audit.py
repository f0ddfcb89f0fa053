"""StateAudit: whether weights and moments can be what training made of them.

Two rules, both without a history and without a loss:

    finite        every weight and every tensor of the optimizer's state is
    possible      |m| / sqrt(v) of each element is at most what Adam can make of any gradients

The second is the inequality of Cauchy and Schwarz: m and v are weighted sums of the same gradients,
so |m| <= sqrt(v) * (1 - b1) / sqrt(1 - b2) / sqrt(1 - b1^2 / b2), whatever the gradients were: 2.3
for betas of 0.9 and 0.99, 7.3 for 0.9 and 0.999. A moment that was lost, zeroed or flipped breaks
it, and the next updates move the weights further than any gradient could.

What breaks a rule at the first audit is the user's own, and is left out from then on. The numbers
stay on the device.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Adam, AdamW, NAdam, Optimizer, RAdam

from trimtab.live.recover.memory_watch import StateTensor, state_tensors
from trimtab.state.host_copy import detached

MARGIN = 3.0
"""Times the bound that |m| / sqrt(v) must exceed. Chosen: in a study of 26 purposeful phases all
runs stayed within the bound itself; moments that were zeroed or scaled were at 56 or more."""

SMALLEST_ROOT = 1e-16
"""Is the least that |m| is divided by: the square of a gradient below 3e-18 is 0 in float32."""

WHOLE, PARTS = 1 << 16, 8
"""A larger tensor has an eighth of its elements looked at in each audit, in turn: an audit of all
moments would cost 0.7 % of a step at 10 million parameters. Moments that are lost show anywhere."""


class StateAudit:
    """Audits the weights and state of one optimizer."""

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        self._device = device
        self._num_audits = 0
        self._bound = 0.0
        """The largest bound of any betas so far: those of before a change still show in m and v."""
        self._own: tuple[torch.Tensor, torch.Tensor] | None = None
        """What was not finite, and what was not possible, at the first audit."""

    @torch.no_grad()
    def audit(self) -> torch.Tensor:
        """Return how many tensors are not finite, how many impossible, and the place of the first.

        The place is that among `state_tensors`, from 1; a sum, so it names a tensor if there is
        one.
        """
        parts = state_tensors(self._optimizer)
        self._num_audits += 1
        nonfinite = ~self._sums(parts).isfinite()
        ratios = self._ratios(parts)
        # Written so that a ratio that is not a number counts: v is negative then.
        impossible = ~(ratios <= max(self._bound, 1.0) * MARGIN) & ~nonfinite
        if self._own is None or len(self._own[0]) != len(parts):
            self._own = (nonfinite, impossible)
        nonfinite = nonfinite & ~self._own[0]
        impossible = impossible & ~self._own[1]
        places = torch.arange(1, len(parts) + 1, device=self._device)
        first = ((nonfinite | impossible) * places).sum()
        return torch.stack((nonfinite.sum(), impossible.sum(), first)).float()

    def _sums(self, parts: Sequence[StateTensor]) -> torch.Tensor:
        """Return the sum of each tensor: not finite where one of its values is not.

        Not the norms: the largest value takes torch six times as long, and squares overflow where
        the values do not.
        """
        nothing = torch.zeros((), device=self._device)
        sums = []
        for part in parts:
            tensor = detached(part.tensor)
            if tensor.is_floating_point() and not tensor.is_sparse:
                wide = torch.promote_types(tensor.dtype, torch.float32)
                sums.append(tensor.sum(dtype=wide).to(nothing))
            else:
                sums.append(nothing)
        return torch.stack(sums)

    def _ratios(self, parts: Sequence[StateTensor]) -> torch.Tensor:
        """Return the largest |m| / (sqrt(v) + eps) of each first moment, 0 of all other tensors."""
        ratios = torch.zeros(len(parts), device=self._device)
        moments = {id(mean): (square, eps) for mean, square, eps in self._moments()}
        places, found = [], []
        for place, part in enumerate(parts):
            if id(part.tensor) in moments:
                square, eps = moments[id(part.tensor)]
                places.append(place)
                found.append(self._largest_ratio(part.tensor, square, eps))
        if found:
            at = torch.tensor(places, device=self._device)
            ratios[at] = torch.stack([ratio.to(self._device) for ratio in found])
        return ratios

    def _largest_ratio(self, mean: torch.Tensor, square: torch.Tensor, eps: float) -> torch.Tensor:
        root = _part(square, self._num_audits).float().sqrt().add_(max(eps, SMALLEST_ROOT))
        ratios = torch.div(_part(mean, self._num_audits).float(), root, out=root)
        largest: torch.Tensor = ratios.abs_().amax()
        return largest

    def _moments(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        optimizer = self._optimizer
        if not isinstance(optimizer, Adam | AdamW | NAdam | RAdam):  # in torch 2.6 AdamW is no Adam
            return
        for group in optimizer.param_groups:
            bound = adam_bound(group.get("betas"))
            if bound is None:
                continue
            self._bound = max(self._bound, bound)
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                mean, square = state.get("exp_avg"), state.get("exp_avg_sq")
                if _has_range(mean) and _has_range(square):
                    yield mean, square, float(group["eps"])


def _part(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    """Return the elements of a tensor whose turn it is, without a copy where that is possible."""
    flat = detached(tensor).reshape(-1)
    if flat.numel() <= WHOLE:
        return flat
    size = -(-flat.numel() // PARTS)
    first = turn % PARTS * size
    return flat[first : first + size]


def adam_bound(betas: Any) -> float | None:
    """Return the largest |m| / sqrt(v) that any gradients can lead to; None if there is none."""
    if not isinstance(betas, tuple | list) or not all(isinstance(b, float | int) for b in betas):
        return None  # tensors would have to be read from the device
    b1, b2 = betas[0], betas[1]
    if not 0 <= b1 < 1 or not 0 < b2 < 1 or b1 * b1 >= b2:
        return None
    return float((1 - b1) / math.sqrt(1 - b2) / math.sqrt(1 - b1 * b1 / b2))


def _has_range(value: Any) -> bool:
    """Return whether a moment has float32's range: in float16 small squares become 0."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in (torch.float32, torch.bfloat16, torch.float64)
        and value.numel() > 0
    )
