"""Holds: options of optimizers that stay as they were at a snapshot.

They are put in for the time of an update and taken out after it: a scheduler, and code that reads
the options between two steps, sees its own values. Which parameters are trained is put right before
every forward pass: there the graph is made, and code that freezes runs before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from trimtab.core.errors import ConfigError
from trimtab.state.snapshot import Snapshot

REQUIRES_GRAD = "requires_grad"
"""The one name that is no option of an optimizer: which parameters are trained."""


LOWERED_STEPS, RETURN_STEPS = 50, 100
"""Steps with a lowered learning rate, and steps over which it returns to the plan."""

RATE = "lr"


class Holds:
    """The held options of all optimizers."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._optimizers = optimizers
        self._held: dict[Optimizer, list[dict[str, Any]]] = {}
        """For each optimizer and group the options that are held."""
        self._requires_grad: dict[str, bool] = {}
        self._before_forward: RemovableHandle | None = None
        self._lowered: tuple[float, int] | None = None
        """A factor of the learning rate, and the step from which on it counts."""
        self._factor = 1.0
        """That of the present step."""
        self._planned: dict[Optimizer, list[dict[str, Any]]] = {}
        """What the user's code has set, while an update runs with what is held."""

    @property
    def is_active(self) -> bool:
        """Whether any option is held or lowered in updates."""
        return bool(self._held) or self._factor != 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """What is held."""
        names = {name for groups in self._held.values() for group in groups for name in group}
        return tuple(sorted(names | ({REQUIRES_GRAD} if self._requires_grad else set())))

    def require_known(self, names: Iterable[str]) -> None:
        """Raise ConfigError for a name that no optimizer has."""
        groups = [group for o in self._optimizers for group in o.param_groups]
        known = {name for group in groups for name in group if name != "params"}
        for name in names:
            if name not in known | {REQUIRES_GRAD}:
                listed = ", ".join(sorted(known | {REQUIRES_GRAD}))
                raise ConfigError(f"{name!r} is no option of an optimizer; known: {listed}")

    def add(self, names: Iterable[str], snapshot: Snapshot) -> None:
        """Hold these options at the values of a snapshot; those held already stay as they are."""
        new = set(names) - set(self.names)
        if REQUIRES_GRAD in new:
            self._requires_grad = dict(snapshot.requires_grad)
            self._before_forward = self._model.register_forward_pre_hook(
                lambda *_: self._train_what_was_trained()
            )
        for optimizer, groups in zip(self._optimizers, snapshot.options(), strict=True):
            held = self._held.setdefault(optimizer, [{} for _ in groups])
            for mine, saved in zip(held, groups, strict=False):
                mine |= {name: saved[name] for name in new if name in saved}
        self._drop_empty()

    def release(self, names: Iterable[str]) -> None:
        """Hold these options no longer."""
        gone = set(names)
        if REQUIRES_GRAD in gone:
            self._requires_grad = {}
            if self._before_forward is not None:
                self._before_forward.remove()
                self._before_forward = None
        for groups in self._held.values():
            for group in groups:
                for name in gone & group.keys():
                    del group[name]
        self._drop_empty()

    def lower_rate(self, factor: float, step: int) -> None:
        """Multiply the learning rate from a step on; it returns to the plan by itself."""
        self._lowered = factor, step

    def begin_step(self, step: int) -> None:
        """At a boundary: the lowered rate of the step, and the parameters that are trained."""
        self._factor = 1.0
        if self._lowered is not None:
            factor, start = self._lowered
            back = min(max((step - start - LOWERED_STEPS) / RETURN_STEPS, 0.0), 1.0)
            self._factor = factor + (1.0 - factor) * back if step >= start else 1.0
        self._train_what_was_trained()

    def close(self) -> None:
        """Hold nothing any more."""
        self.release(self.names)
        self._lowered, self._factor = None, 1.0

    def _train_what_was_trained(self) -> None:
        """The parameters that were trained at the snapshot are, and no others."""
        if not self._requires_grad:
            return
        for name, parameter in self._model.named_parameters():
            flag = self._requires_grad.get(name, parameter.requires_grad)
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)

    def put_in(self, optimizer: Optimizer) -> None:
        """An update begins: put in what is held."""
        if not self.is_active:
            return
        self.take_out(optimizer)  # an update that raised has left it there
        planned: list[dict[str, Any]] = []
        self._planned[optimizer] = planned
        held = self._held.get(optimizer) or [{} for _ in optimizer.param_groups]
        for group, values in zip(optimizer.param_groups, held, strict=False):
            if self._factor != 1.0 and RATE in group:
                values = values | {RATE: self._factor * float(values.get(RATE, group[RATE]))}
            planned.append({name: _copy(group[name]) for name in values if name in group})
            for name in planned[-1]:
                _set(group, name, values[name])

    def take_out(self, optimizer: Optimizer) -> None:
        """The update is over: the options are the user's again."""
        planned = self._planned.pop(optimizer, [])
        for group, values in zip(optimizer.param_groups, planned, strict=False):
            for name, value in values.items():
                _set(group, name, value)

    @contextmanager
    def effective(self, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        """See the options with which updates are made."""
        for optimizer in optimizers:
            self.put_in(optimizer)
        try:
            yield
        finally:
            for optimizer in optimizers:
                self.take_out(optimizer)

    def _drop_empty(self) -> None:
        self._held = {o: groups for o, groups in self._held.items() if any(groups)}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    """Set an option; a tensor stays the same one, because a compiled step refers to it."""
    present = group[name]
    if isinstance(present, torch.Tensor):
        with torch.no_grad():
            present.fill_(value) if not isinstance(value, torch.Tensor) else present.copy_(value)
    else:
        group[name] = value
