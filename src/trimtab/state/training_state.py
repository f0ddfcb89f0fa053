"""TrainingState: everything that the next training step depends on.

    model         parameters, every buffer (persistent or not), gradients that are kept between
                  steps, requires_grad, train/eval mode
    optimizers    the state of each parameter, the options of each group
    schedulers    their state_dict
    scaler        scale and growth counter
    state         what else the user names: anything with state_dict and load_state_dict

`state_dict` of a model or an optimizer would not do: it leaves out non-persistent buffers, lists
tied weights twice, and `load_state_dict` of an optimizer replaces every tensor and every dict.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer


class HasState(Protocol):
    """What a scheduler, an EMA or a loader has."""

    def state_dict(self) -> Any:
        """All that must be saved."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Return to a saved state."""
        ...


class TrainingState:
    """The objects of a run, and views onto their tensors and values."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        schedulers: Sequence[HasState] = (),
        scaler: Any = None,
        state: Mapping[str, HasState] | None = None,
    ) -> None:
        self.model = model
        self.optimizers = tuple(optimizers)
        self.schedulers = tuple(schedulers)
        self.scaler = scaler
        self.state = dict(state or {})

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Parameters and buffers of the model, and parameters that only an optimizer knows."""
        parameters: dict[str, torch.Tensor] = dict(self.model.named_parameters())
        known = {id(parameter) for parameter in parameters.values()}
        extra = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        for number, parameter in enumerate(p for p in extra if id(p) not in known):
            parameters[f"optimizer parameter {number}"] = parameter
        return {"parameters": parameters, "buffers": dict(self.model.named_buffers())}

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """The gradients that exist at this moment, by parameter."""
        return {name: p.grad for name, p in self.tensors()["parameters"].items()}

    def optimizer_state(self) -> list[dict[int, Any]]:
        """For each optimizer the state of its parameters, by their position in the groups."""
        return [
            {
                position: optimizer.state[parameter]
                for position, parameter in enumerate(_parameters(optimizer))
                # `state` is a defaultdict: asking for a missing entry would make one.
                if parameter in optimizer.state
            }
            for optimizer in self.optimizers
        ]

    def group_options(self) -> list[list[dict[str, Any]]]:
        """For each optimizer the options of its groups, without the parameters."""
        return [
            [{k: v for k, v in group.items() if k != "params"} for group in o.param_groups]
            for o in self.optimizers
        ]

    def group_parameters(self) -> list[list[list[torch.Tensor]]]:
        """For each optimizer the parameters of its groups."""
        return [[list(group["params"]) for group in o.param_groups] for o in self.optimizers]

    def requires_grad(self) -> dict[str, bool]:
        """Which parameters are trained."""
        return {name: p.requires_grad for name, p in self.tensors()["parameters"].items()}

    def modes(self) -> dict[str, bool]:
        """Which modules are in training mode."""
        return {name: module.training for name, module in self.model.named_modules()}


def _parameters(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
