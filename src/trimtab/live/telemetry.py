"""Telemetry: what is measured every few steps besides loss and gradient norm.

Loss and gradient norm tell 32 % of faults apart within six steps, with the optimizer's norms it is
78 % (measured on 41 faults in small models): these are the best buy after the gradient norm.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.roles import Roles
from trimtab.live.shards import local
from trimtab.live.shares import Shares
from trimtab.live.state_sums import squares, sum_state

_SCALARS = ("zeros", "grad_dot_m", "adam_grads", "grad_to_v", "adam_step", "has_adam")


class Telemetry:
    """Measures sums on the device, and turns them into signals once they are on the host."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        parameters: Sequence[torch.Tensor],
        roles: Roles,
        shares: Shares,
        world: int,
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters
        self._index_of = {parameter: index for index, parameter in enumerate(parameters)}
        self._roles = roles
        self._shares = shares
        self._world = world
        self._num_elements = sum(parameter.numel() for parameter in parameters)
        by_role = ("param", "grad", "m", "v", "update")
        self.slots = (
            *(f"{what}:{role}" for what in by_role for role in roles.names),
            *(f"layer:{layer}" for layer in roles.layers),
            *_SCALARS,
        )
        """The names of what `measure` returns, the same on every rank and at every step."""

    def measure(self) -> torch.Tensor:
        """This rank's share of every sum, as one vector."""
        everything = range(len(self._parameters))
        weights = [local(parameter.detach()) for parameter in self._parameters]
        share = self._shares.shares(everything)
        param = self._shares.by_role(everything, squares(weights) * share)
        state = sum_state(self._optimizers, self._index_of)
        if state is None:
            rest = torch.zeros(len(self.slots) - len(param), device=self._shares.device)
            return torch.cat((param, rest))
        share, indices = self._shares.shares(state.indices), state.indices
        by_role = (state.grad, state.m, state.v, state.update)
        scalars = (state.zeros, state.grad_dot_m, state.grad_of_adam, state.grad_to_v)
        step = torch.zeros((), device=self._shares.device) if state.step is None else state.step
        has_adam = torch.full_like(step, float(state.step is not None))
        return torch.cat(
            (
                param,
                *(self._shares.by_role(indices, values * share) for values in by_role),
                self._shares.by_layer(indices, state.grad * share),
                torch.stack([*((values * share).sum() for values in scalars), step, has_adam]),
            )
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
