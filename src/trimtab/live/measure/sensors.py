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
from trimtab.live.measure.activations import Activations
from trimtab.live.measure.loss_meter import LossMeter, Number, as_scalar
from trimtab.live.measure.pieces import has_dense_grad
from trimtab.live.measure.roles import assign_roles
from trimtab.live.measure.shares import Shares
from trimtab.live.measure.state_sums import squares
from trimtab.live.measure.telemetry import Telemetry
from trimtab.live.optimizers import parameters_of
from trimtab.live.ranks.shards import local
from trimtab.live.shield import Shield

HEAD = ("loss", "tokens", "nan", "inf", "given_norm", "num_given", "grad_squares", "num_measured")
"""What is measured at every step."""

MOST_OWN = 64
"""Signals that a user may add to a step; they are not added up over ranks."""


class Sensors:
    """Measures a step on the device and explains the numbers on the host."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        world: int,
        shield: Shield,
        *,
        activations: bool,
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters_of(optimizers)
        self.device = local(self._parameters[0]).device
        self._world = world
        roles = assign_roles(model, self._parameters)
        self._shares = Shares(self._parameters, roles)
        self._telemetry = Telemetry(optimizers, self._parameters, roles, self._shares, world)
        self.activations = Activations(model, self.device, shield) if activations else None
        blocks = self.activations.names if self.activations else ()
        self.rest = (*self._telemetry.slots, *(f"block:{name}" for name in blocks))
        """What is measured at some steps besides HEAD."""
        self.loss = LossMeter(self.device)
        self._zero, self._one = (torch.full((), value, device=self.device) for value in (0.0, 1.0))
        self._own_sums: tuple[torch.Tensor, torch.Tensor] | None = None
        self._given_norm: torch.Tensor | None = None
        self._is_from_user = False
        self._grad_squares: torch.Tensor | None = None
        self._own: dict[str, torch.Tensor] = {}
        if len({*HEAD, *self.rest}) != len(HEAD) + len(self.rest):
            raise AssertionError("two slots of one name would be read as one")

    @property
    def capacity(self) -> int:
        """The most numbers that one step can have."""
        return len(HEAD) + len(self.rest) + MOST_OWN

    @property
    def has_norm(self) -> bool:
        """Whether the step's gradient norm is known already."""
        return self._given_norm is not None or self._grad_squares is not None

    @property
    def norm_was_given(self) -> bool:
        """Whether the gradient norm came from the user, before clipping."""
        return self._given_norm is not None

    @property
    def norm_is_of_gradients(self) -> bool:
        """Whether the norm is that of the gradients at hand, and not one that the user gave."""
        return not (self._given_norm is not None and self._is_from_user)

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are spread over ranks."""
        return any(isinstance(parameter, DTensor) for parameter in self._parameters)

    @property
    def gradients_are_gone(self) -> bool:
        """Whether zero_grad has run since the last backward."""
        return all(parameter.grad is None for parameter in self._parameters)

    def give_norm(self, norm: Number, *, is_from_user: bool = False) -> None:
        """Take the gradient norm before clipping from whoever knows it."""
        # A copy: whoever gave the tensor may go on to change it.
        self._given_norm = as_scalar(norm, self.device).clone()
        self._is_from_user = is_from_user

    def give_own(self, name: str, value: Number) -> None:
        """Take a signal of this rank alone; what was given first for a step stands."""
        if name not in self._own and len(self._own) < MOST_OWN:
            self._own[name] = as_scalar(value, self.device).clone()

    @torch.no_grad()
    def see_gradient(self) -> None:
        """Measure the gradient norm as the optimizer is about to use it."""
        having = [i for i, p in enumerate(self._parameters) if has_dense_grad(p)]
        if not having:
            return
        grads = [self._parameters[i].grad for i in having]
        parts = [local(grad) for grad in grads if grad is not None]
        total = (squares(parts) * self._shares.shares(having)).sum()
        scale = self._grad_scale()
        self._grad_squares = total if scale is None else total / scale.square()

    def unscale_norm(self) -> None:
        """Divide the norm that our own clipping gave by the scale that the gradients still have."""
        if self._given_norm is not None and not self._is_from_user:
            scale = self._grad_scale()
            if scale is not None:
                self._given_norm = self._given_norm / scale

    def measure_head(self) -> torch.Tensor:
        """The sums that every step has. Starts the next step."""
        head = self._measure_head()
        self.forget()
        return head

    def measure_rest(self) -> torch.Tensor:
        """The sums that some steps have besides, in the order of `rest`."""
        told = self._telemetry.measure()
        if self.activations is None:
            return told
        return torch.cat((told, self.activations.buffer))

    def own_loss(self) -> torch.Tensor | None:
        """The loss of this rank alone, of the step that was measured last."""
        if self._own_sums is None:
            return None
        weighted, tokens = self._own_sums
        if self._world == 1:
            return weighted
        # A rank that was given no tokens has no loss, and not one that is not a number.
        return weighted / torch.where(tokens == 0, self._one, tokens)

    def take_own(self) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
        """The names and values of this rank's own signals of the step."""
        own, self._own = self._own, {}
        return tuple(own), (torch.stack(list(own.values())),) if own else ()

    def forget(self) -> None:
        """Start the next step."""
        self.loss.forget()
        self._given_norm = self._grad_squares = None

    def no_head(self) -> torch.Tensor:
        """Sums that say nothing, for a rank that failed."""
        return torch.zeros(len(HEAD), device=self.device)

    def no_rest(self) -> torch.Tensor:
        """The same for those that only some steps have."""
        return torch.zeros(len(self.rest), device=self.device)

    def interpret_head(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The signals behind the sums that every step has."""
        return _explain_head(sums)

    def interpret_rest(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The signals behind the sums that some steps have besides."""
        return self._telemetry.interpret(sums) | self._explain_blocks(sums)

    def silent_blocks(self, sums: Mapping[str, float]) -> list[str]:
        """The blocks whose hook has not fired by a step that has the rest."""
        return [name for name in self._block_names() if sums[f"block:{name}"] < 0]

    def _measure_head(self) -> torch.Tensor:
        weighted, tokens = self.loss.take()
        self._own_sums = weighted, tokens
        zero, one = self._zero, self._one
        given, measured = self._given_norm, self._grad_squares
        # A loss that is not finite is counted, not added: the sum must stay a sum of numbers.
        return torch.stack(
            [
                torch.nan_to_num(weighted, nan=0.0, posinf=0.0, neginf=0.0),
                tokens,
                torch.isnan(weighted).float(),
                torch.isinf(weighted).float(),
                zero if given is None else given,
                zero if given is None else one,
                zero if measured is None else measured,
                zero if measured is None else one,
            ]
        )

    def _grad_scale(self) -> torch.Tensor | None:
        """The scale that GradScaler hands to a fused optimizer: its gradients are still scaled."""
        scales = (getattr(optimizer, "grad_scale", None) for optimizer in self._optimizers)
        scale = next((scale for scale in scales if isinstance(scale, torch.Tensor)), None)
        return None if scale is None else as_scalar(scale, self.device)

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
