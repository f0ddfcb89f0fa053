"""StateFacts: the facts of model, optimizer, scaler and generators that a resume must restore.

Everything here is local to a rank: a checkpoint is often saved by one rank alone, and a collective
would wait for the others for ever. Norms of a shard can be compared as long as the layout is
the same.
"""

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from trimtab.core import signals
from trimtab.journal.resume import facts
from trimtab.journal.resume.facts import Facts
from trimtab.live.measure.step_meter import main_learning_rate
from trimtab.live.ranks.exchange import HostCopy, copy_to_host
from trimtab.live.ranks.shards import real
from trimtab.state.host_copy import local
from trimtab.state.training_state import parameters_of

_MODE = "train_mode"
"""An option of schedule-free optimizers: they swap the weights between training and evaluation."""

_NO_OPTIONS = frozenset(
    {
        *("params", "param_names", "lr", "initial_lr", "step", "foreach", "fused"),
        *("capturable", "differentiable", _MODE),
    }
)
"""What may differ after a right resume: the parameters, what schedules move, how an update is
computed."""


@dataclass(slots=True)
class PendingFacts:
    """Facts, some of which are still on their way from the device."""

    known: Facts = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    copy: HostCopy | None = None

    def add(self, name: str, value: Any) -> None:
        """Take a number, or a tensor with one; others are left out."""
        if isinstance(value, torch.Tensor):
            if value.device.type != "meta":
                self.names.append(name)
                self.values.append(_wide(value.detach().reshape(())))
        elif isinstance(value, int | float):
            self.known[name] = float(value)

    def send(self) -> "PendingFacts":
        """Begin to copy what is on the device, without waiting for it."""
        if self.values:
            device = _main_device(value.device for value in self.values)
            self.copy = copy_to_host(
                torch.stack([value.to(device, non_blocking=True) for value in self.values])
            )
        return self

    def read(self) -> Facts:
        """All facts, as soon as they have arrived."""
        if self.copy is None:
            return dict(self.known)
        return self.known | dict(zip(self.names, self.copy.read(), strict=True))


@torch.no_grad()
def state_facts(optimizers: Sequence[Optimizer]) -> PendingFacts:
    """Weights, moments, counts, options and learning rate as they are now."""
    found = PendingFacts()
    parameters = [local(parameter.detach()) for parameter in parameters_of(optimizers)]
    modes = [group.get(_MODE) for optimizer in optimizers for group in optimizer.param_groups]
    shapes = [tuple(parameter.shape) for parameter in parameters]
    found.add(facts.LAYOUT, _crc([shapes, *(mode for mode in modes if mode is not None)]))
    _add_norm(found, facts.PARAM_NORM, parameters)
    found.add(facts.LR, main_learning_rate(optimizers).get(signals.LR))
    for name, values in _options(optimizers).items():
        found.add(f"{facts.OPTION}{name}", _one_number(values))
    _add_optimizer_state(found, optimizers)
    return found.send()


def scaler_facts(scaler: Any) -> PendingFacts:
    """Scale and growth tracker of a GradScaler, which makes its tensors at its first use."""
    found = PendingFacts()
    for name, key in ((facts.LOSS_SCALE, "scale"), (facts.GROWTH_TRACKER, "growth_tracker")):
        tensor = getattr(scaler, f"_{key}", None)
        value = getattr(scaler, f"_init_{key}", None) if tensor is None else tensor
        # `scaler.update()` writes to its tensors before the copy is read.
        found.add(name, value.clone() if isinstance(value, torch.Tensor) else value)
    return found.send()


def random_facts() -> Facts:
    """A checksum of each generator on the host; draws nothing and changes nothing."""
    legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (datasets use this one)
    numbers, place = legacy["state"].get("key"), legacy["state"].get("pos", 0)
    python = np.array(random.getstate()[1], dtype=np.uint64)
    with _disable_current_modes():  # in a fake mode a tensor has no numbers
        state = torch.get_rng_state().numpy()
    return {
        f"{facts.RNG}torch": float(zlib.crc32(state.data)),
        f"{facts.RNG}numpy": _crc(legacy) if numbers is None else _crc_of(numbers, place),
        f"{facts.RNG}python": _crc_of(python),
    }


def _add_optimizer_state(found: PendingFacts, optimizers: Sequence[Optimizer]) -> None:
    by_key: dict[str, list[torch.Tensor]] = {}
    steps: list[torch.Tensor] = []
    count = 0.0
    for optimizer in optimizers:
        for state in list(optimizer.state.values()):
            for key, value in state.items() if isinstance(state, Mapping) else ():
                if key == "step":
                    if isinstance(value, torch.Tensor):
                        steps.append(value.detach())
                    elif isinstance(value, int | float):
                        count = max(count, float(value))
                elif _has_norm(value):
                    by_key.setdefault(str(key), []).append(local(value.detach()))
        groups = [group.get("step") for group in optimizer.param_groups]
        count = max([count, *(float(step) for step in groups if isinstance(step, int))])
    for key, tensors in by_key.items():
        _add_norm(found, f"{facts.STATE_NORM}{key}", tensors)
    if steps:
        device = _main_device(step.device for step in steps)
        found.add(
            facts.OPTIMIZER_STEP,
            torch.stack([step.to(device).reshape(()).float() for step in steps]).max(),
        )
    else:
        found.add(facts.OPTIMIZER_STEP, count)


def _has_norm(value: Any) -> bool:
    """Whether this is a plain tensor of numbers: quantised states have none that can be read."""
    if not isinstance(value, torch.Tensor):
        return False
    part = local(value)
    return type(part) is torch.Tensor and part.is_floating_point() and part.numel() > 0


def _add_norm(found: PendingFacts, name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Add the L2 norm of tensors that may be on different devices."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() and tensor.device.type != "meta":
            by_device.setdefault(tensor.device, []).append(tensor)
    if by_device:
        device = _main_device(by_device)
        sums = [_sum_squares(parts).to(device) for parts in by_device.values()]
        found.add(name, torch.stack(sums).sum().sqrt())


def _sum_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """In fp64: machines that add up fp32 in different orders differ by 1e-5."""
    parts = [real(tensor) for tensor in tensors]
    dtype = _wide(parts[0].new_empty(())).dtype
    return torch.stack(torch._foreach_norm(parts, 2.0, dtype=dtype)).square().sum()


def _wide(value: torch.Tensor) -> torch.Tensor:
    """A number in fp64, where the device has it."""
    return value.float() if value.device.type == "mps" else value.double()


def _main_device(devices: Iterable[torch.device]) -> torch.device:
    """An accelerator if there is one: a copy from there to the host would have to be waited for."""
    return max(devices, key=lambda device: device.type != "cpu")


def _options(optimizers: Sequence[Optimizer]) -> dict[str, list[Any]]:
    """Every option that a resume must restore, with its value in each group."""
    options: dict[str, list[Any]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name, value in group.items():
                if name not in _NO_OPTIONS and not isinstance(value, torch.Tensor):
                    options.setdefault(name, []).append(value)
    return options


MAX_CHANGES = 3
"""Changes of an option after which it is taken for a schedule and no longer reported."""

_WATCHED = frozenset(
    {
        *("betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "amsgrad"),
        *("alpha", "rho", "decoupled_weight_decay", "maximize"),
    }
)
"""Options that people set; some optimizers keep counters beside them."""


class OptionWatch:
    """Finds options of optimizers that code has changed, other than the learning rate."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._known = self._words()
        self._num_parameters = self._count()
        self._num_changes: dict[str, int] = {}

    def changes(self) -> Iterator[dict[str, str]]:
        """Yield the facts of each option that differs from the last time."""
        before, self._known = self._known, self._words()
        for name, words in self._known.items():
            if before.get(name, words) == words:
                continue
            self._num_changes[name] = self._num_changes.get(name, 0) + 1
            if self._num_changes[name] <= MAX_CHANGES:
                yield {"name": name, "before": before[name], "after": words}

    def resized(self) -> tuple[int, int] | None:
        """Return how many parameters the optimizers held and hold, if that has changed."""
        before, self._num_parameters = self._num_parameters, self._count()
        return None if before == self._num_parameters else (before, self._num_parameters)

    def _count(self) -> int:
        count = 0
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                count += len(group["params"])
        return count

    def _words(self) -> dict[str, str]:
        """Return the values of each option over the groups, each value once."""
        return {
            name: ", ".join(dict.fromkeys(str(value) for value in values))[:200]
            for name, values in _options(self._optimizers).items()
            if name in _WATCHED
        }


def _one_number(values: list[Any]) -> float:
    """The value that all groups have, if it is a number; else a checksum of all."""
    first = values[0]
    if isinstance(first, int | float) and all(value == first for value in values):
        return float(first)
    return _crc(values)


def _crc(value: Any) -> float:
    return float(zlib.crc32(repr(value).encode()))


def _crc_of(numbers: NDArray[Any], start: int = 0) -> float:
    return float(zlib.crc32(numbers.data, start))
