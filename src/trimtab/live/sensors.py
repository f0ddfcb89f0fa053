"""Sensors: everything that is measured on the device in one step, as one vector of sums.

Every slot is a sum over ranks, so that one all_reduce serves all of them; what the sums mean is
worked out on the host, where they arrive a few steps later.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.activations import Activations
from trimtab.live.loss_meter import LossMeter, Number, as_scalar
from trimtab.live.optimizers import parameters_of
from trimtab.live.pieces import has_dense_grad
from trimtab.live.roles import assign_roles
from trimtab.live.shards import local
from trimtab.live.shares import Shares
from trimtab.live.state_sums import squares
from trimtab.live.telemetry import Telemetry

HEAD = ("loss", "tokens", "nan", "inf", "given_norm", "num_given", "grad_squares", "num_measured")
"""What is measured at every step."""

MOST_OWN = 64
"""Signals that a user may add to a step; they are not added up over ranks."""


class Sensors:
    """Measures a step on the device and explains the numbers on the host."""

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], world: int, *, activations: bool
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters_of(optimizers)
        self.device = local(self._parameters[0]).device
        self._world = world
        roles = assign_roles(model, self._parameters)
        self._shares = Shares(self._parameters, roles)
        self._telemetry = Telemetry(optimizers, self._parameters, roles, self._shares, world)
        self.activations = Activations(model, self.device) if activations else None
        blocks = self.activations.names if self.activations else ()
        self._slots = {
            False: HEAD,
            True: (*HEAD, *self._telemetry.slots, *(f"block:{name}" for name in blocks)),
        }
        self.loss = LossMeter(self.device)
        self._given_norm: torch.Tensor | None = None
        self._grad_squares: torch.Tensor | None = None
        self._own: dict[str, torch.Tensor] = {}
        if len(set(self._slots[True])) != len(self._slots[True]):
            raise AssertionError("two slots of one name would be read as one")

    @property
    def capacity(self) -> int:
        """The most numbers that one step can have."""
        return len(self._slots[True]) + MOST_OWN

    @property
    def has_norm(self) -> bool:
        """Whether the step's gradient norm is known already."""
        return self._given_norm is not None or self._grad_squares is not None

    @property
    def norm_was_given(self) -> bool:
        """Whether the gradient norm came from the user, before clipping."""
        return self._given_norm is not None

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are spread over ranks."""
        return any(isinstance(parameter, DTensor) for parameter in self._parameters)

    @property
    def gradients_are_gone(self) -> bool:
        """Whether zero_grad has run since the last backward."""
        return all(parameter.grad is None for parameter in self._parameters)

    def give_norm(self, norm: Number) -> None:
        """Take the gradient norm before clipping from whoever knows it."""
        # A copy: whoever gave the tensor may go on to change it.
        self._given_norm = as_scalar(norm, self.device).clone()

    def give_own(self, name: str, value: Number) -> None:
        """Take a signal of this rank alone; what was given first for a step stands."""
        if name not in self._own and len(self._own) < MOST_OWN:
            self._own[name] = as_scalar(value, self.device).clone()

    def see_gradient(self) -> None:
        """Measure the gradient norm as the optimizer is about to use it."""
        having = [i for i, p in enumerate(self._parameters) if has_dense_grad(p)]
        if not having:
            return
        grads = [self._parameters[i].grad for i in having]
        parts = [local(grad) for grad in grads if grad is not None]
        total = (squares(parts) * self._shares.shares(having)).sum()
        scale = next((s for s in map(_grad_scale, self._optimizers) if s is not None), None)
        if scale is not None:
            total = total / as_scalar(scale, self.device).square()
        self._grad_squares = total

    def measure(self, *, full: bool) -> torch.Tensor:
        """The sums of this step; `full` with telemetry. Starts the next step."""
        head = self._measure_head()
        self.forget()
        if not full:
            return head
        parts = [head, self._telemetry.measure()]
        if self.activations is not None:
            parts.append(self.activations.buffer)
        return torch.cat(parts)

    def take_own(self) -> tuple[tuple[str, ...], torch.Tensor | None]:
        """The names and values of this rank's own signals of the step."""
        own, self._own = self._own, {}
        return tuple(own), torch.stack(list(own.values())) if own else None

    def forget(self) -> None:
        """Start the next step."""
        self.loss.forget()
        self._given_norm = self._grad_squares = None

    def nothing(self, *, full: bool) -> torch.Tensor:
        """A vector of the right length that says nothing, for a rank that failed."""
        return torch.zeros(len(self._slots[full]), device=self.device)

    def interpret(
        self, values: Sequence[float], own_names: Sequence[str], *, full: bool
    ) -> dict[str, float]:
        """The signals behind the numbers that arrived on the host."""
        slots = self._slots[full]
        sums = dict(zip(slots, values, strict=False))
        told = _explain_head(sums)
        if full:
            told |= self._telemetry.interpret(sums)
            told |= self._explain_blocks(sums)
        told |= dict(zip(own_names, values[len(slots) :], strict=True))
        return told

    def silent_blocks(self, values: Sequence[float]) -> list[str]:
        """The blocks whose hook has not fired by a full step."""
        sums = dict(zip(self._slots[True], values, strict=False))
        return [name for name in self._block_names() if sums[f"block:{name}"] < 0]

    def _measure_head(self) -> torch.Tensor:
        weighted, tokens = self.loss.take()
        zero = torch.zeros_like(weighted)
        given, measured = self._given_norm, self._grad_squares
        # A loss that is not finite is counted, not added: the sum must stay a sum of numbers.
        return torch.stack(
            [
                torch.where(torch.isfinite(weighted), weighted, zero),
                tokens,
                torch.isnan(weighted).float(),
                torch.isinf(weighted).float(),
                zero if given is None else given,
                zero if given is None else zero + 1.0,
                zero if measured is None else measured,
                zero if measured is None else zero + 1.0,
            ]
        )

    def _block_names(self) -> tuple[str, ...]:
        return self.activations.names if self.activations else ()

    def _explain_blocks(self, sums: Mapping[str, float]) -> dict[str, float]:
        means = {name: sums[f"block:{name}"] / self._world for name in self._block_names()}
        return {
            f"{signals.ACTIVATION_RMS}{name}": mean
            for name, mean in means.items()
            if not mean < 0  # also keeps NaN, which is a value
        }


def _explain_head(sums: Mapping[str, float]) -> dict[str, float]:
    told = {signals.TOKENS: sums["tokens"]}
    if sums["nan"] > 0:
        told[signals.LOSS] = math.nan
    elif sums["inf"] > 0:
        told[signals.LOSS] = math.inf
    elif sums["tokens"] > 0:
        told[signals.LOSS] = sums["loss"] / sums["tokens"]
    if sums["num_given"] > 0:
        told[signals.GRAD_NORM] = sums["given_norm"] / sums["num_given"]
    elif sums["num_measured"] > 0:
        squares = sums["grad_squares"]
        told[signals.GRAD_NORM] = math.sqrt(squares) if math.isfinite(squares) else abs(squares)
    return told


def _grad_scale(optimizer: Optimizer) -> torch.Tensor | None:
    """The scale that GradScaler hands to a fused optimizer: its gradients are still scaled."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, torch.Tensor) else None
