"""KeptState: a copy of the user's objects, restored after each measurement and compared.

Kept are what a snapshot keeps (parameters, buffers, gradients, optimizer state and options,
schedulers, random numbers, training modes) and beside it plain attributes of modules, optimizers
and schedulers, and the loader's position, generators and epoch.
"""

import copy
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trimtab.checks.objects.inputs import Inputs
from trimtab.state.host_copy import detached
from trimtab.state.rng import get_random_state
from trimtab.state.snapshot import Snapshot
from trimtab.state.training_state import TrainingState

# Attributes of other types are shared with the user: copying them could change what they refer to.
_PLAIN = (bool, int, float, str, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class KeptState:
    """A copy of everything that a measurement may change."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._state = TrainingState(inputs.model, inputs.optimizers, schedulers=inputs.schedulers)
        # First, because asking some loaders for their state draws random numbers.
        self._snapshot = Snapshot(self._state)
        self._tensors: list[tuple[Any, dict[str, Any]]] = [
            (held, dict(held))
            for module in inputs.model.modules()
            for held in (module._parameters, module._buffers)
        ]
        self._attributes = [(part, _plain(part)) for part in self._parts()]
        self._gradients = [(p, p.grad) for p in self._state.tensors()["parameters"].values()]
        self.loader = LoaderState(inputs.loader)
        self._snapshot.restore_random_state()  # reading the loader's state may have drawn some

    def restore(self) -> None:
        """Restore everything."""
        # Some modules make buffers in their first pass, or replace them.
        for held, tensors in self._tensors:
            held.clear()
            held.update(tensors)
        # The user's own gradient tensors, so that their values are copied into them.
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._snapshot.restore()
        for part, values in self._attributes:
            now = _plain(part)
            for name in now.keys() - values.keys():
                delattr(part, name)
            for name, value in values.items():
                if name not in now or now[name] != value:
                    setattr(part, name, value)
        self.loader.restore()
        self._snapshot.restore_random_state()

    def digest(self) -> dict[str, Any]:
        """Return values that differ if a bit of the objects differs."""
        state = self._state
        tensors: dict[str, Any] = dict(state.tensors())
        tensors["gradients"] = state.gradients()
        tensors["optimizer state"] = dict(enumerate(state.optimizer_state()))
        return {
            **{kind: _checksum(part) for kind, part in tensors.items()},
            "options of the optimizer": repr(state.group_options()),
            "frozen parameters": state.requires_grad(),
            "training mode": state.modes(),
            "scheduler": [_checksum(part.state_dict()) for part in state.schedulers],
            "attributes": [_plain(part) for part in self._parts()],
            "hooks": [
                list(getattr(module, name)) for module in state.model.modules() for name in _HOOKS
            ],
            "random numbers": _checksum(_random_values()),
            "loader": self.loader.digest(),
        }

    def _parts(self) -> Iterator[Any]:
        yield from self._inputs.model.modules()
        yield from self._inputs.optimizers
        yield from self._inputs.schedulers


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
        """Restore the position."""
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
        local = detached(value).cpu().contiguous().reshape(-1)
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
