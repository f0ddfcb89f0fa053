"""Contents: all that an optimizer or a model holds besides large tensors, to be put back later.

Attributes, containers in them, objects of the same package, generators and small tensors. Of large
tensors only the reference is kept, so nothing large is ever copied.
"""

import copy
import random
from collections import deque
from collections.abc import Iterable
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.state.host_copy import version_of

SMALL_ELEMENTS = 64
"""Elements of a tensor that is copied at most. Chosen: a counter or an average for each group fits,
and with the state of 10,000 parameters it is a few MB."""

MAX_ENTRIES = 2**19
"""Entries of all containers that are looked at. Chosen: ten times those of 10,000 parameters with
their states, read within a second."""

_TRANSPARENT = ("_parameters", "_buffers", "_modules")
"""Dicts of a module whose keys are names of its own."""

_OWNERS = (nn.Module, torch.optim.Optimizer, Thread)


class Contents:
    """What an object holds, and all objects of a kind in it, with the names that lead there."""

    def __init__(self, root: Any, kind: type[Any], *, without: Iterable[torch.Tensor] = ()) -> None:
        """Look through `root` and the objects of `kind` in it; `without` are left alone."""
        self._kind = kind
        self._package = _package(root)
        self._containers: list[tuple[str, Any, Any]] = []
        self._generators: list[tuple[str, Any, Any]] = []
        self._values: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._versions: list[tuple[str, torch.Tensor, int]] = []
        self.is_complete = True
        """Whether there was no more than could be looked at."""
        seen = set(map(id, without))
        waiting: list[tuple[str, Any]] = [("", root)]
        num_entries = 0
        while waiting:
            name, value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            parts = self._take(name, value)
            num_entries += len(parts)
            if num_entries > MAX_ENTRIES:
                self.is_complete = False
                return
            waiting += parts

    @property
    def small_tensors(self) -> list[torch.Tensor]:
        """The tensors whose values are put back."""
        return [tensor for tensor, _ in self._values]

    @torch.no_grad()
    def restore(self) -> list[str]:
        """Put everything back into the same objects; return the names of what had changed.

        A large tensor that was written to is named, and stays as it is.
        """
        changed: list[str] = []
        problems: list[Exception] = []
        for name, container, saved in self._containers:
            try:
                changed += (_join(name, key) for key in _put_back(container, saved))
            except Exception as problem:  # of a class that forbids it: the others come first
                problems.append(problem)
        for name, generator, state in self._generators:
            if repr(_state(generator)) != repr(state):
                changed.append(name)
                _set_state(generator, state)
        changed += (
            name for name, tensor, version in self._versions if version_of(tensor) != version
        )
        for tensor, value in self._values:
            tensor.data.copy_(value)  # not counted as a write: its value is what it was
        if problems:
            raise problems[0]
        return changed

    def _take(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """Save a value, unless its reference is all there is to it; return what is in it."""
        if isinstance(value, torch.Tensor):
            self._versions.append((name, value, version_of(value)))
            if _is_small(value):
                self._values.append((value, value.detach().clone()))
            return []
        if isinstance(value, torch.Generator | np.random.Generator | random.Random):
            self._generators.append((name, value, _state(value)))
            return []
        if self._is_entered(value):
            value = vars(value)
        if isinstance(value, dict | list | set | deque):
            saved = dict(value) if isinstance(value, dict) else copy.copy(value)
            self._containers.append((name, value, saved))
        if isinstance(value, dict):
            return [
                (_join(name, key), part)
                for key, part in value.items()
                if not (isinstance(key, str) and key.startswith("_optimizer_"))  # its hooks
            ]
        if isinstance(value, list | tuple | set | deque):
            return [(name, part) for part in value]
        return []

    def _is_entered(self, value: Any) -> bool:
        """Return whether attributes of an object belong to the root, and not to another library."""
        if isinstance(value, type) or not hasattr(value, "__dict__"):
            return False
        if isinstance(value, _OWNERS):
            return isinstance(value, self._kind)
        if self._package == "torch" or _package(value) != self._package:
            return False
        # What has a model or a thread is a trainer or a loader, and no helper.
        return not any(isinstance(part, _OWNERS) for part in vars(value).values())


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _join(name: str, key: Any) -> str:
    if not isinstance(key, str | int) or key in _TRANSPARENT:
        return name  # such as the parameter that a state belongs to, which is not to be printed
    return f"{name}.{key}" if name else str(key)


def _is_small(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided
    can_be_written = tensor.device.type != "meta" and not tensor.is_inference()
    return is_plain and can_be_written and tensor.numel() <= SMALL_ELEMENTS


def _put_back(container: Any, saved: Any) -> list[Any]:
    """Give a container its former content; return the keys that had another value, "" for all."""
    if isinstance(container, dict):
        added = [key for key in container if key not in saved]
        other = [k for k, v in saved.items() if k not in container or container[k] is not v]
        for key in added:
            del container[key]
        container.update({key: saved[key] for key in other})
        return added + other
    is_same = len(container) == len(saved) and all(
        part in saved if isinstance(saved, set) else part is former
        for part, former in zip(container, saved, strict=True)
    )
    if is_same:
        return []
    container.clear()
    add = container.update if isinstance(container, set) else container.extend
    add(saved)
    return [""]


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    is_python = isinstance(generator, random.Random)
    return generator.getstate() if is_python else generator.bit_generator.state


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.tensor(state, dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state
