"""Finding the torch optimizers in what the user passes as "the optimizer"."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core.errors import ConfigError
from trimtab.state.training_state import parameters_of

_DELEGATES = ("accelerate", "torchtitan", "lightning", "pytorch_lightning", "torch")
"""Packages whose wrappers do nothing in `step` but call the optimizers inside."""


def find_optimizers(given: Any, *, is_protected: bool = False) -> tuple[Optimizer, ...]:
    """Return the torch optimizers in an optimizer, a wrapper of one, or several of them.

    Wrappers keep theirs under any name: Accelerate in `.optimizer`, torchtitan several in
    `.optimizers`, SAM in `.base_optimizer`. Hooks must sit on the torch optimizers themselves,
    where `step` really happens.
    """
    wrappers: dict[int, Any] = {}
    found = tuple(dict.fromkeys(_unwrap(given, wrappers)))
    if not found:
        shown = repr(given) if isinstance(given, str | int | float) else type(given).__name__
        raise ConfigError(
            f"no torch optimizer found in {shown[:60]}; pass the object, such as "
            "torch.optim.AdamW(model.parameters())"
        )
    for wrapper in wrappers.values() if is_protected else ():
        if not _only_delegates(wrapper):
            raise ConfigError(
                f"{type(wrapper).__name__} wraps an optimizer and may move the weights itself, so "
                "its bad steps cannot be discarded; use mode='observe', or pass the optimizer "
                "inside it if that alone moves them"
            )
    for optimizer in found:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "LBFGS evaluates a step several times; trimtab cannot watch it. Record its losses "
                "without the optimizer, with trimtab.record(run_dir) and run.log(step=..., "
                "loss=...)"
            )
    return found


def _only_delegates(wrapper: Any) -> bool:
    """Whether it is known to call the optimizers inside and to do nothing else, unlike SAM."""
    owner = next((kind for kind in type(wrapper).__mro__ if "step" in vars(kind)), Optimizer)
    return owner is not Optimizer and owner.__module__.partition(".")[0] in _DELEGATES


def _unwrap(given: Any, wrappers: dict[int, Any]) -> list[Optimizer]:
    """Return the optimizers to watch; `wrappers` collects what has others inside, by id."""
    if isinstance(given, str | torch.Tensor) or id(given) in wrappers:
        return []  # letters are strings again, and rows of a parameter are tensors again
    is_optimizer = isinstance(given, Optimizer)
    if is_optimizer and type(given).__module__.startswith("torch."):
        return [given]  # also ZeroRedundancyOptimizer, which has one inside
    wrappers[id(given)] = given  # now: it may be found in itself
    found = [one for part in _inside(given) for one in _unwrap(part, wrappers)]
    # An optimizer with parameters besides those of the ones inside moves them itself.
    if found and (not is_optimizer or _covers(found, given)):
        return found
    if not found:
        del wrappers[id(given)]
    if is_optimizer:
        return [given]
    several = given.values() if isinstance(given, Mapping) else given
    parts = several if isinstance(several, Iterable) else ()
    return [one for part in parts for one in _unwrap(part, wrappers)]


def _inside(given: Any) -> list[Any]:
    """Return what an object has under the usual names, and its optimizers under any other."""
    usual = [getattr(given, name, None) for name in ("optimizer", "optimizers")]
    others: list[Any] = []
    for value in getattr(given, "__dict__", {}).values():
        if isinstance(value, Mapping):
            others += value.values()
        else:
            others += value if isinstance(value, list | tuple) else [value]
    return [*usual, *(one for one in others if isinstance(one, Optimizer))]


def _covers(optimizers: list[Optimizer], wrapper: Any) -> bool:
    inside = set(map(id, parameters_of(optimizers)))
    groups = getattr(wrapper, "param_groups", ())
    return all(id(parameter) in inside for group in groups for parameter in group["params"])
