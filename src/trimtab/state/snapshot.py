"""Snapshot: one copy of a run's state in host memory, taken and put back in place."""

import copy
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core.errors import RestoreError
from trimtab.state.host_copy import CopyToHost, CopyToLive, HostTensor, detached
from trimtab.state.rng import RandomState, get_random_state, set_random_state
from trimtab.state.training_state import UNNAMED, TrainingState


class Snapshot:
    """A slot in host memory: taking into it again reuses its buffers.

    Only at a boundary between steps: a restore in the middle of one would change weights that a
    graph still needs, or leave the user's `scheduler.step()` to run after it.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Any] = {}
        """Values with tensors: parameters, buffers, optimizer state, options, ..."""
        self._group_parameters: list[list[list[torch.Tensor]]] = []
        self._flags: dict[str, dict[str, bool]] = {}
        self._schedulers: list[Any] = []
        self._random: RandomState | None = None
        self.step = -1
        """The step that comes next from this state; -1 while the slot is empty."""
        self.num_bytes = 0
        """Host memory of the tensors that this rank keeps."""

    def take(self, state: TrainingState, step: int) -> None:
        """Copy the state; `step` is the number of the step that comes next."""
        self.step = -1  # a copy that fails half-way must not be a target
        copies = CopyToHost()
        old = self._copies
        tensors = state.tensors()
        self._copies = {
            "parameters": copies.copy(tensors["parameters"], old.get("parameters")),
            "optimizer state": copies.copy(state.optimizer_state(), old.get("optimizer state")),
            "buffers": copies.copy(tensors["buffers"], old.get("buffers")),
            "gradients": copies.copy(state.gradients(), old.get("gradients")),
            "options": copies.copy(state.group_options(), old.get("options")),
            "scaler": copies.copy(state.scaler_tensors(), old.get("scaler")),
            "state": copies.copy(
                {name: part.state_dict() for name, part in state.state.items()}, old.get("state")
            ),
        }
        self.num_bytes = copies.finish()
        self._group_parameters = state.group_parameters()
        self._flags = {"requires_grad": state.requires_grad(), "modes": state.modes()}
        self._schedulers = [copy.deepcopy(part.state_dict()) for part in state.schedulers]
        self._random = get_random_state()
        self.step = step

    def put(self, state: TrainingState) -> None:
        """Return all but the random state; raises RestoreError before anything is changed."""
        self.verify(state)
        copies = CopyToLive()
        saved = self._copies
        tensors = state.tensors()
        copies.put(saved["parameters"], tensors["parameters"])
        copies.put(saved["buffers"], tensors["buffers"])
        self._put_gradients(copies, tensors["parameters"])
        self._put_flags(state, tensors["parameters"])
        for optimizer, groups in zip(state.optimizers, self._group_parameters, strict=True):
            _put_groups(optimizer, groups)
        self._put_optimizer_state(copies, state)
        self._put_scaler(copies, state)
        # A scheduler does not write the learning rate when it is loaded, and some write other
        # options: so the options come after it.
        for scheduler, part in zip(state.schedulers, self._schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(part))
        for optimizer, options in zip(state.optimizers, saved["options"], strict=True):
            for group, values in zip(optimizer.param_groups, options, strict=True):
                _put_options(copies, values, group)
        for name, part in saved["state"].items():
            state.state[name].load_state_dict(_fresh(part))
        copies.finish()

    def put_random_state(self) -> None:
        """Return the random state: the last thing of a restore, since making iterators draws."""
        if self._random is not None:
            set_random_state(self._random)

    @property
    def has_gradients(self) -> bool:
        """Whether gradients were kept between two steps when it was taken."""
        return any(part is not None for part in self._copies.get("gradients", {}).values())

    @property
    def requires_grad(self) -> dict[str, bool]:
        """Which parameters were trained, by name."""
        return self._flags["requires_grad"]

    def parameters(self) -> dict[str, HostTensor]:
        """The parameters as they were, by name."""
        saved: dict[str, HostTensor] = self._copies["parameters"]
        return saved

    def options(self) -> list[list[dict[str, Any]]]:
        """The group options as they were, tensors as numbers; to compare with the present ones."""
        return [[_plain(values) for values in groups] for groups in self._copies["options"]]

    def verify(self, state: TrainingState) -> None:
        """Raise RestoreError if this snapshot cannot be put back: before anything is written."""
        if self.step < 0:
            raise RestoreError("this snapshot is empty; nothing was changed")
        for kind, tensors in state.tensors().items():
            saved = self._copies[kind]
            # A parameter that was given to an optimizer later leaves it again with its group.
            now = [name for name in tensors if name in saved or not name.startswith(UNNAMED)]
            if saved.keys() != set(now):
                names = sorted(saved.keys() ^ set(now))[:3]
                raise RestoreError(
                    f"the model's {kind} are not those of the snapshot of step {self.step} "
                    f"(different: {', '.join(names)}); nothing was changed"
                )
            for name in now:
                if not saved[name].matches(detached(tensors[name])):
                    raise RestoreError(
                        f"{name} has changed its shape or dtype since the snapshot of step "
                        f"{self.step}; nothing was changed"
                    )
        if len(self._group_parameters) != len(state.optimizers):
            raise RestoreError("the number of optimizers has changed; nothing was changed")

    def _put_gradients(self, copies: CopyToLive, parameters: dict[str, torch.Tensor]) -> None:
        for name, saved in self._copies["gradients"].items():
            parameter = parameters[name]
            parameter.grad = None if saved is None else copies.put(saved, parameter.grad)

    def _put_flags(self, state: TrainingState, parameters: dict[str, torch.Tensor]) -> None:
        for name, flag in self._flags["requires_grad"].items():
            if parameters[name].requires_grad != flag:
                parameters[name].requires_grad_(flag)
        for name, module in state.model.named_modules():
            module.training = self._flags["modes"].get(name, module.training)

    def _put_optimizer_state(self, copies: CopyToLive, state: TrainingState) -> None:
        for optimizer, saved in zip(state.optimizers, self._copies["optimizer state"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            known = set(map(id, parameters))
            for parameter in [p for p in optimizer.state if id(p) not in known]:
                del optimizer.state[parameter]
            for position, parameter in enumerate(parameters):
                if position in saved:
                    live = optimizer.state.get(parameter)
                    optimizer.state[parameter] = copies.put(saved[position], live)
                else:
                    optimizer.state.pop(parameter, None)

    def _put_scaler(self, copies: CopyToLive, state: TrainingState) -> None:
        for name, saved in self._copies["scaler"].items():
            live = getattr(state.scaler, name, None)
            setattr(state.scaler, name, None if saved is None else copies.put(saved, live))


def _put_groups(optimizer: Optimizer, groups: list[list[torch.Tensor]]) -> None:
    """The groups as they were: later ones go, the dicts of the others stay."""
    if len(optimizer.param_groups) < len(groups):
        raise RestoreError("an optimizer has lost a parameter group since the snapshot")
    del optimizer.param_groups[len(groups) :]
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        group["params"][:] = parameters


def _put_options(copies: CopyToLive, saved: dict[str, Any], group: dict[str, Any]) -> None:
    for name in [name for name in group if name != "params" and name not in saved]:
        del group[name]
    for name, value in saved.items():
        group[name] = copies.put(value, group.get(name))


def _fresh(saved: Any) -> Any:
    """The copy as ordinary tensors, for objects that load a state_dict themselves."""
    copies = CopyToLive()
    value = copies.put(saved, None)
    copies.finish()
    return value


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.data.item()
        if isinstance(value, HostTensor) and value.data is not None and value.data.numel() == 1
        else value
        for name, value in values.items()
    }
