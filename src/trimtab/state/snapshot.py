"""Snapshot: one copy of a run's state in host memory, restored in place."""

import copy
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core.errors import RestoreError
from trimtab.state.host_copy import CopyToHost, CopyToLive
from trimtab.state.rng import get_random_state, set_random_state
from trimtab.state.training_state import TrainingState


class Snapshot:
    """Model, optimizers, schedulers and random numbers as they are when it is made.

    Only at a boundary between steps: a restore in the middle of one would change weights that a
    graph still needs.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        copies = CopyToHost()
        tensors = state.tensors()
        self._parameters = copies.copy(tensors["parameters"])
        self._optimizer_state = copies.copy(state.optimizer_state())
        self._buffers = copies.copy(tensors["buffers"])
        self._gradients = copies.copy(state.gradients())
        self._options = copies.copy(state.group_options())
        self.num_bytes = copies.finish()
        """Host memory of the tensors that this rank keeps."""
        self._group_parameters = state.group_parameters()
        self._requires_grad, self._modes = state.requires_grad(), state.modes()
        self._schedulers = [copy.deepcopy(part.state_dict()) for part in state.schedulers]
        self._random = get_random_state()

    def restore(self) -> None:
        """Restore all but the random numbers."""
        state, copies = self._state, CopyToLive()
        tensors = state.tensors()
        parameters = tensors["parameters"]
        copies.put(self._parameters, parameters)
        copies.put(self._buffers, tensors["buffers"])
        for name, saved in self._gradients.items():
            parameter = parameters[name]
            parameter.grad = None if saved is None else copies.put(saved, parameter.grad)
        for name, flag in self._requires_grad.items():
            if parameters[name].requires_grad != flag:
                parameters[name].requires_grad_(flag)
        for name, module in state.model.named_modules():
            module.training = self._modes.get(name, module.training)
        for optimizer, groups in zip(state.optimizers, self._group_parameters, strict=True):
            _restore_groups(optimizer, groups)
        for optimizer, saved in zip(state.optimizers, self._optimizer_state, strict=True):
            _restore_state(copies, saved, optimizer)
        # A scheduler does not write the learning rate when it is loaded, and some write other
        # options: so the options come after it.
        for scheduler, part in zip(state.schedulers, self._schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(part))
        for optimizer, options in zip(state.optimizers, self._options, strict=True):
            for group, values in zip(optimizer.param_groups, options, strict=True):
                _restore_options(copies, values, group)
        copies.finish()

    def restore_random_state(self) -> None:
        """Restore the random numbers: the last thing of a restore, since making iterators draws."""
        set_random_state(self._random)


def _restore_groups(optimizer: Optimizer, groups: list[list[torch.Tensor]]) -> None:
    """Remove the groups that were added later; the dicts of the others stay."""
    if len(optimizer.param_groups) < len(groups):
        raise RestoreError("an optimizer has lost a parameter group since the snapshot")
    del optimizer.param_groups[len(groups) :]
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        group["params"][:] = parameters


def _restore_state(copies: CopyToLive, saved: dict[int, Any], optimizer: Optimizer) -> None:
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


def _restore_options(copies: CopyToLive, saved: dict[str, Any], group: dict[str, Any]) -> None:
    for name in [name for name in group if name != "params" and name not in saved]:
        del group[name]
    for name, value in saved.items():
        group[name] = copies.put(value, group.get(name))
