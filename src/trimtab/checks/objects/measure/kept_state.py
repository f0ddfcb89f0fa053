"""KeptState: a copy of the user's objects, restored after each measurement and compared.

Kept are parameters, buffers, gradients, optimizer state and options, schedulers, random numbers,
training modes, plain attributes of modules, optimizers and schedulers, and the loader's position,
generators and epoch. Everything is restored in place: users, fused optimizers and compiled graphs
keep references to tensors and containers.
"""

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.checks.objects.inputs import Inputs
from trimtab.state.rng import get_random_state, set_random_state

# Attributes of other types are shared with the user: copying them could change what they refer to.
_PLAIN = (bool, int, float, str, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class KeptState:
    """A copy of everything that a measurement may change."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        # First, because asking some loaders for their state draws random numbers.
        self._random = get_random_state()
        self._values = _TensorValues()
        parameters = self._parameters().values()
        for tensor in (*parameters, *inputs.model.buffers()):
            self._values.keep(tensor)
        self._registered: list[tuple[Any, dict[str, Any]]] = [
            (held, dict(held))
            for module in inputs.model.modules()
            for held in (module._parameters, module._buffers)
        ]
        self._of_parameters = [(p, p.grad, p.requires_grad) for p in parameters]
        for _, gradient, _ in self._of_parameters:
            self._values.keep_all(gradient)
        self._modes = [(module, module.training) for module in inputs.model.modules()]
        self._optimizers = [
            self._values.keep_all(part)
            for optimizer in inputs.optimizers
            for part in (optimizer.state, optimizer.param_groups)
        ]
        self._schedulers = [copy.deepcopy(part.state_dict()) for part in inputs.schedulers]
        self._attributes = [(part, _plain(part)) for part in self._parts()]
        self.loader = LoaderState(inputs.loader)
        set_random_state(self._random)  # reading the loader's state may have drawn some

    def restore(self) -> None:
        # Some modules make buffers in their first pass, or replace them.
        for held, tensors in self._registered:
            held.clear()
            held.update(tensors)
        # The user's own gradient tensors; their values are copied into them below.
        for parameter, gradient, requires_grad in self._of_parameters:
            parameter.grad = gradient
            parameter.requires_grad_(requires_grad)
        for module, mode in self._modes:
            module.training = mode
        for scheduler, state in zip(self._inputs.schedulers, self._schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(state))
        # After the schedulers: some write options of the optimizer when they are loaded.
        for restore in self._optimizers:
            restore()
        self._values.restore()
        for part, values in self._attributes:
            now = _plain(part)
            for name in now.keys() - values.keys():
                delattr(part, name)
            for name, value in values.items():
                if name not in now or now[name] != value:
                    setattr(part, name, value)
        # Last, because restoring some loaders draws random numbers.
        self.loader.restore()
        set_random_state(self._random)

    def digest(self) -> dict[str, Any]:
        """Return values that differ if a bit of the objects differs."""
        inputs, parameters = self._inputs, self._parameters()
        modules = list(inputs.model.modules())
        return {
            "parameters": _checksum(parameters),
            "buffers": _checksum(dict(inputs.model.named_buffers())),
            "gradients": _checksum({name: p.grad for name, p in parameters.items()}),
            "optimizer state": _checksum(
                # `state` is a defaultdict: asking for a missing entry would make one.
                [dict(o.state.get(p, {})) for o in inputs.optimizers for p in _held(o)]
            ),
            "options of the optimizer": repr(
                [
                    {name: v for name, v in group.items() if name != "params"}
                    for group in inputs.groups
                ]
            ),
            "frozen parameters": [p.requires_grad for p in parameters.values()],
            "training mode": [module.training for module in modules],
            "scheduler": [_checksum(part.state_dict()) for part in inputs.schedulers],
            "attributes": [_plain(part) for part in self._parts()],
            "hooks": [list(getattr(module, name)) for module in modules for name in _HOOKS],
            "random numbers": _checksum(_random_values()),
            "loader": self.loader.digest(),
        }

    def _parameters(self) -> dict[str, torch.Tensor]:
        """Return the model's parameters by name, and those that only an optimizer holds."""
        named: dict[str, torch.Tensor] = dict(self._inputs.model.named_parameters())
        known = set(map(id, named.values()))
        others = [p for o in self._inputs.optimizers for p in _held(o) if id(p) not in known]
        return named | {f"optimizer parameter {n}": p for n, p in enumerate(others)}

    def _parts(self) -> Iterator[Any]:
        yield from self._inputs.model.modules()
        yield from self._inputs.optimizers
        yield from self._inputs.schedulers


class _TensorValues:
    """The values of tensors, in host memory: a copy on the device might not fit."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._kept:
            self._kept[id(tensor)] = tensor, tensor.detach().to("cpu", copy=True)

    def keep_all(self, value: Any) -> Callable[[], Any]:
        """Keep the tensors of nested containers; return what restores the containers in place.

        Fused optimizers and user code keep references to the containers, too.
        """
        if isinstance(value, torch.Tensor):
            self.keep(value)
        elif isinstance(value, tuple):
            for part in value:
                self.keep_all(part)
        elif isinstance(value, dict):
            entries = {key: self.keep_all(part) for key, part in value.items()}

            def restore_dict() -> Any:
                found = {key: restore() for key, restore in entries.items()}
                value.clear()
                value.update(found)
                return value

            return restore_dict
        elif isinstance(value, list):
            parts = [self.keep_all(part) for part in value]

            def restore_list() -> Any:
                value[:] = [restore() for restore in parts]
                return value

            return restore_list
        return lambda: value

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, saved in self._kept.values():
            tensor.detach().copy_(saved)


def _held(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class LoaderState:
    """The position of a loader, as far as it can be read and restored."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        """Whether the loader itself can return to a position."""
        self._state = copy.deepcopy(loader.state_dict()) if self.has_state else None
        self._iterator = getattr(loader, "_iterator", None)
        parts = (loader, *(getattr(loader, n, None) for n in ("sampler", "batch_sampler")))
        self._samplers = [part for part in parts if part is not None]
        self._generators = [
            (generator, generator.get_state())
            for part in self._samplers
            if isinstance(generator := getattr(part, "generator", None), torch.Generator)
        ]
        self._epochs = [(part, part.epoch) for part in self._samplers if hasattr(part, "epoch")]

    def restore(self) -> None:
        if self.has_state:
            self._loader.load_state_dict(copy.deepcopy(self._state))
        elif getattr(self._loader, "_iterator", None) is not self._iterator:
            self._loader._iterator = self._iterator  # workers that stay between two epochs
        for generator, state in self._generators:
            generator.set_state(state)
        for part, epoch in self._epochs:
            part.epoch = epoch

    def digest(self) -> Any:
        """Return a value that is equal for equal positions."""
        generators = [_checksum(generator.get_state()) for generator, _ in self._generators]
        epochs = [part.epoch for part, _ in self._epochs]
        position = _checksum(self._loader.state_dict()) if self.has_state else None
        return position, generators, epochs


def _plain(part: Any) -> dict[str, Any]:
    """Return the numbers, texts and flags among the attributes of an object."""
    return {
        name: value
        for name, value in vars(part).items()
        if isinstance(value, _PLAIN) and name != "training"
    }


def _random_values() -> dict[str, Any]:
    state = get_random_state()
    return {
        "python": repr(state.python),
        "numpy": repr((state.numpy[1].tolist(), state.numpy[2:])),
        "torch": (state.cpu, *state.accelerators),
    }


def _checksum(value: Any) -> Any:
    """Return the value with tensors as crc32 of their bytes."""
    if isinstance(value, torch.Tensor):
        local = value.detach().cpu().contiguous().reshape(-1)
        return (
            str(value.dtype),
            tuple(value.shape),
            zlib.crc32(local.view(torch.uint8).numpy().data),
        )
    if isinstance(value, Mapping):
        return {name: _checksum(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_checksum(part) for part in value]
    return value if isinstance(value, _PLAIN) else repr(type(value))
