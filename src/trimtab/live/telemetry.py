"""Telemetry: what is measured every few steps besides loss and gradient norm.

Loss and gradient norm tell 32 % of faults apart within six steps, with the optimizer's norms it is
78 % (measured on 41 faults in small models): these are the best buy after the gradient norm.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.adam_state import measure_adam
from trimtab.live.norms import SquareSums
from trimtab.live.roles import Roles
from trimtab.live.shards import local

_ADAM_SCALARS = ("grad_dot_m", "adam_grads", "grad_to_v", "adam_step", "has_adam")


class Telemetry:
    """Measures sums on the device, and turns them into signals once they are on the host."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        parameters: Sequence[torch.Tensor],
        roles: Roles,
        sums: SquareSums,
        world: int,
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters
        self._index_of = {parameter: index for index, parameter in enumerate(parameters)}
        self._roles = roles
        self._sums = sums
        self._world = world
        self._num_elements = sum(parameter.numel() for parameter in parameters)
        by_role = ("param", "grad", "m", "v", "update")
        self.slots = (
            *(f"{what}:{role}" for what in by_role for role in roles.names),
            *(f"layer:{layer}" for layer in roles.layers),
            "zeros",
            *_ADAM_SCALARS,
        )
        """The names of what `measure` returns, the same on every rank and at every step."""

    def measure(self) -> torch.Tensor:
        """This rank's share of every sum, as one vector."""
        everything = range(len(self._parameters))
        with_grad = [i for i in everything if _has_dense_grad(self._parameters[i])]
        grads = [self._parameters[i].grad for i in with_grad]
        dense = [grad for grad in grads if grad is not None]
        weights = [parameter.detach() for parameter in self._parameters]
        grad_squares = self._sums.squares(with_grad, dense)
        adam_vectors, adam_scalars = self._measure_adam()
        return torch.cat(
            [
                self._sums.by_role(everything, self._sums.squares(everything, weights)),
                self._sums.by_role(with_grad, grad_squares),
                adam_vectors,
                self._sums.by_layer(with_grad, grad_squares),
                self._zeros(with_grad, dense).reshape(1),
                adam_scalars,
            ]
        )

    def interpret(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The signals behind the sums over all ranks."""
        told: dict[str, float] = {}
        roles = self._roles.names
        told |= _norms(signals.PARAM_NORM, "param", sums, roles)
        told |= {f"{signals.GRAD_NORM_OF}{role}": _root(sums[f"grad:{role}"]) for role in roles}
        for layer in self._roles.layers:
            told[f"{signals.GRAD_NORM_OF}layer.{layer}"] = _root(sums[f"layer:{layer}"])
        told[signals.ZERO_GRAD_SHARE] = sums["zeros"] / self._num_elements
        if sums["has_adam"] > 0:
            told |= _norms(signals.ADAM_M_NORM, "m", sums, roles)
            told |= _norms(signals.ADAM_V_NORM, "v", sums, roles)
            told |= _norms(signals.UPDATE_NORM, "update", sums, roles)
            told[signals.GRAD_TO_V_RMS] = _root(sums["grad_to_v"] / self._num_elements)
            told[signals.ADAM_STEP] = sums["adam_step"] / self._world
            scale = _root(sums["adam_grads"]) * told[signals.ADAM_M_NORM]
            if scale > 0:
                told[signals.GRAD_MOMENTUM_COSINE] = sums["grad_dot_m"] / scale
        return told

    def _zeros(self, indices: Sequence[int], grads: Sequence[torch.Tensor]) -> torch.Tensor:
        if not grads:
            return torch.zeros((), device=self._sums.device)
        counts = [local(grad).numel() - torch.count_nonzero(local(grad)) for grad in grads]
        return (torch.stack(counts).float() * self._sums.shares(indices)).sum()

    def _measure_adam(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors and the scalars of Adam's state; zeros if there is none."""
        num_vectors, num_scalars = 3 * len(self._roles.names), len(_ADAM_SCALARS)
        found = measure_adam(self._optimizers, self._index_of, self._sums)
        if found is None:
            nothing = torch.zeros(num_vectors + num_scalars, device=self._sums.device)
            return nothing[:num_vectors], nothing[num_vectors:]
        adam, step = found
        present = torch.ones_like(step)
        scalars = (adam.grad_dot_m, adam.grad_squares, adam.grad_to_v, step, present)
        return torch.cat((adam.m, adam.v, adam.update)), torch.stack(scalars)


def _has_dense_grad(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and not parameter.grad.is_sparse


def _norms(
    signal: str, what: str, sums: Mapping[str, float], roles: Sequence[str]
) -> dict[str, float]:
    """The norm of the whole and of each role."""
    squares = {role: sums[f"{what}:{role}"] for role in roles}
    return {signal: _root(sum(squares.values()))} | {
        f"{signal}/{role}": _root(square) for role, square in squares.items()
    }


def _root(square: float) -> float:
    """The root of a sum of squares; rounding may leave a tiny negative one."""
    return math.sqrt(max(square, 0.0)) if math.isfinite(square) else abs(square)
