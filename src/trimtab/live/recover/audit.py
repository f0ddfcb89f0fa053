"""StateAudit: whether weights and moments can be what training made of them.

Three rules, all without a history and without a loss:

    finite        every weight and every tensor of the optimizer's state is, and so are the running
                  statistics of normalization layers
    possible      |m| / sqrt(v) of each element is at most what Adam can make of any gradients
    near          no weight is further from its snapshot than Adam's updates since can have moved it

The second is the inequality of Cauchy and Schwarz: m and v are weighted sums of the same gradients,
so |m| <= sqrt(v) * (1 - b1) / sqrt(1 - b2) / sqrt(1 - b1^2 / b2), whatever the gradients were: 2.3
for betas of 0.9 and 0.99, 7.3 for 0.9 and 0.999. A moment that was lost, zeroed or flipped breaks
it, and the next updates move the weights further than any gradient could. The third follows from
it: each update moves a weight by at most the learning rate times that bound. It needs a snapshot
on the device, so it is asked only where training stands still. Of other optimizers no such bound is
known: there a weight is far that is a million times its tensor's largest.

What breaks a rule at the first audits is the user's own, and is left out from then on; so are
infinities that training goes on with, and moments that are impossible after code has written the
optimizer's state, until they are possible again. The numbers stay on the device.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, AdamW, NAdam, Optimizer, RAdam

from trimtab.live.recover.memory_watch import StateTensor
from trimtab.state.host_copy import HostTensor, detached
from trimtab.state.snapshots import running_statistics

MARGIN = 3.0
"""Factor by which a bound must be exceeded. Chosen: in a study of 26 purposeful phases all runs
stayed within the bound of |m| / sqrt(v) itself, and moments that were zeroed or scaled were at 56
times or more; healthy weights moved by 0.16 of theirs."""

ENORMOUS = 1e6
"""Times the largest weight of a tensor, or 1, that updates without a known bound are not expected
to move one. Chosen: a flip that makes every gradient overflow is beyond 1e30, and a run that has
diverged as far is not restored without a reason, either."""

SMALLEST_ROOT = 1e-16
"""The least that |m| is divided by: the square of a gradient below 3e-18 is 0 in float32."""

WHOLE, PARTS = 1 << 16, 8
"""A larger tensor has an eighth of its elements looked at in each audit, in turn: an audit of all
moments would cost 0.7 % of a step at 10 million parameters. Moments that are lost show anywhere."""

LEARNING_AUDITS = 2
"""Audits, or `PARTS` with a large tensor, in which impossible moments are taken for the user's: at
the start, and after code has written the state. Chosen: an element just within the bound at the
first of them may exceed it by a tenth until the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Travel:
    """How far updates can have moved a weight; not a number where that is not known."""

    distance: float = 0.0
    """The sum of learning rate times Adam's bound, over all updates."""
    decay: float = 0.0
    """The sum of learning rate times decoupled weight decay: a fraction of the weight."""
    num_updates: int = 0

    def add(self, optimizer: Optimizer) -> "Travel":
        """Return the sums with the update that was just made; of several groups, the largest."""
        distance = decay = 0.0
        is_known = type(optimizer) in (Adam, AdamW, NAdam)  # a subclass may move as it likes
        for group in optimizer.param_groups:
            rate, shrinks = group.get("lr"), group.get("weight_decay", 0.0)
            bound = adam_bound(group.get("betas"))
            if not is_known or bound is None or not isinstance(rate, float | int):
                return Travel(distance=math.nan)  # a tensor would have to be read
            distance = max(distance, abs(rate) * max(bound, 1.0))
            decay = max(decay, abs(rate * shrinks))
        return Travel(
            distance=self.distance + distance,
            decay=self.decay + decay,
            num_updates=self.num_updates + 1,
        )

    def since(self, earlier: "Travel") -> "Travel":
        """Return what the updates between two states add up to."""
        return Travel(
            distance=self.distance - earlier.distance,
            decay=self.decay - earlier.decay,
            num_updates=self.num_updates - earlier.num_updates,
        )


@dataclass(frozen=True, slots=True)
class Reference:
    """A sound state to compare the weights with."""

    parameters: Sequence[HostTensor]
    travel: Travel
    """How far updates can have moved weights since then."""


class StateAudit:
    """Audits the weights and state of one optimizer, and the buffers of a model."""

    def __init__(
        self, optimizer: Optimizer, device: torch.device, model: nn.Module | None = None
    ) -> None:
        self._optimizer = optimizer
        self._device = device
        self._model = model
        """The model whose buffers are audited; None to audit none."""
        self._num_audits = 0
        self._bound = 0.0
        """The largest bound of any betas so far: those of before a change still show in m and v."""
        self._zero = torch.zeros((), device=device)
        self._own_nonfinite: torch.Tensor | None = None
        """Tensors that were not finite at the first audit, or that training goes on with."""
        self._infinite: torch.Tensor | None = None
        """Tensors with an infinity, at the last audit."""
        self._own_impossible = self._impossible = torch.zeros(0, device=device).bool()
        """Tensors whose impossible moments are the user's, and those that were seen since."""
        self._audits_to_learn = self._audits_left = LEARNING_AUDITS

    def accept_infinities(self) -> None:
        """Leave out what was infinite at the last audit: training goes on with it.

        A NaN is not left out: nobody writes one on purpose, and a snapshot must not hold it.
        """
        if self._own_nonfinite is not None and self._infinite is not None:
            self._own_nonfinite = self._own_nonfinite | self._infinite

    def accept_written_state(self) -> None:
        """Take the next impossible moments for the user's: code has written the state."""
        self._audits_left = self._audits_to_learn
        self._own_impossible = self._impossible = torch.zeros_like(self._own_impossible)

    @torch.no_grad()
    def audit(
        self, parts: Sequence[StateTensor], reference: Reference | None = None
    ) -> torch.Tensor:
        """Return `AUDIT_FIELDS`.

        An index is that among `parts`, from 1; a sum, so it names a tensor if there is one.
        """
        self._num_audits += 1
        sums = self._sums([part.tensor for part in parts])
        nonfinite = ~sums.isfinite()
        # Written so that a ratio that is not a number counts: v is negative then.
        impossible = ~(self._ratios(parts) <= max(self._bound, 1.0) * MARGIN) & ~nonfinite
        if self._own_nonfinite is None or len(self._own_nonfinite) != len(parts):
            self._own_nonfinite = nonfinite
            self._own_impossible = self._impossible = torch.zeros_like(nonfinite)
            is_large = any(detached(part.tensor).numel() > WHOLE for part in parts)
            self._audits_to_learn = self._audits_left = PARTS if is_large else LEARNING_AUDITS
        self._infinite = sums.isinf()
        nonfinite = nonfinite & ~self._own_nonfinite
        impossible = self._unless_own(impossible)
        too_far = torch.zeros_like(nonfinite)
        if reference is not None:
            too_far = ~(self._excess(parts, reference) <= 0) & ~nonfinite & sums.isfinite()
        counts = _count(nonfinite, impossible, too_far)
        return torch.cat((counts, _index(nonfinite | impossible | too_far), self._audit_buffers()))

    def _unless_own(self, impossible: torch.Tensor) -> torch.Tensor:
        """Leave out what is the user's, as long as it stays impossible."""
        self._impossible = self._impossible | impossible
        if self._audits_left > 0:
            self._own_impossible = self._own_impossible | impossible
        found = impossible & ~self._own_impossible
        self._audits_left -= 1
        if self._audits_left in (0, -self._audits_to_learn):  # all of each tensor has been seen
            self._own_impossible = self._own_impossible & self._impossible
            self._impossible = torch.zeros_like(self._impossible)
            self._audits_left = 0
        return found

    def _audit_buffers(self) -> torch.Tensor:
        buffers = {} if self._model is None else running_statistics(self._model)
        if not buffers:
            return self._zero.expand(2)
        nonfinite = ~self._sums(list(buffers.values())).isfinite()
        return torch.cat((_count(nonfinite), _index(nonfinite)))

    def _sums(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of each tensor: not finite where one of its values is not.

        Not the norms: the largest value takes torch six times as long, and squares overflow where
        the values do not.
        """
        sums = []
        for given in tensors:
            tensor = detached(given)
            if tensor.is_floating_point() and not tensor.is_sparse:
                wide = torch.promote_types(tensor.dtype, torch.float32)
                sums.append(tensor.sum(dtype=wide).to(self._zero, non_blocking=True))
            else:
                sums.append(self._zero)
        return torch.stack(sums)

    def _ratios(self, parts: Sequence[StateTensor]) -> torch.Tensor:
        """Return the largest |m| / (sqrt(v) + eps) of each first moment, 0 of all other tensors."""
        moments = {id(mean): (square, eps) for mean, square, eps in self._moments()}
        return torch.stack(
            [
                self._largest_ratio(part.tensor, *moments[id(part.tensor)])
                if id(part.tensor) in moments
                else self._zero
                for part in parts
            ]
        )

    def _largest_ratio(self, mean: torch.Tensor, square: torch.Tensor, eps: float) -> torch.Tensor:
        root = _part(square, self._num_audits).float().sqrt().add_(max(eps, SMALLEST_ROOT))
        ratios = torch.div(_part(mean, self._num_audits).float(), root, out=root)
        largest: torch.Tensor = ratios.abs_().amax()
        return largest.to(self._zero, non_blocking=True)

    def _moments(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        optimizer = self._optimizer
        # A subclass may have other moments (AdaBelief), which the bound does not hold for.
        if type(optimizer) not in (Adam, AdamW, NAdam, RAdam):
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

    def _excess(self, parts: Sequence[StateTensor], reference: Reference) -> torch.Tensor:
        """Return by how much each weight is too far from the reference; at most 0 is near.

        Rounding moves a weight, too: by a unit in its last place at most in each update.
        """
        travel, saved = reference.travel, iter(reference.parameters)
        excess = []
        for part in parts:
            if part.key is not None:
                excess.append(self._zero)
                continue
            now, data = detached(part.tensor), next(saved).data
            if not now.is_floating_point() or now.numel() == 0:
                excess.append(self._zero)
                continue
            then = data.to(now.device, torch.float32)
            moved, largest = (now.float() - then).abs().amax(), then.abs().amax()
            rounding = travel.num_updates * torch.finfo(now.dtype).eps
            near = MARGIN * (travel.distance + (travel.decay + rounding) * largest)
            if math.isnan(travel.distance):
                near = ENORMOUS * largest.clamp(min=1.0)
            excess.append((moved - near).to(self._zero))
        return torch.stack(excess)


def _count(*found: torch.Tensor) -> torch.Tensor:
    """Return how many tensors each rule has found."""
    return torch.stack([flags.sum() for flags in found]).float()


def _index(found: torch.Tensor) -> torch.Tensor:
    """Return the sum of the indices of what was found, from 1."""
    indices = torch.arange(1, len(found) + 1, device=found.device)
    return (found * indices).sum().float().view(1)


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
    return _adam_bound(tuple(betas)) if isinstance(betas, tuple | list) else None


@lru_cache(maxsize=8)
def _adam_bound(betas: tuple[Any, ...]) -> float | None:
    if not all(isinstance(b, float | int) for b in betas):
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
