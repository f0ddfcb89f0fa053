"""Finding the torch optimizers in what the user passes as "the optimizer"."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core.errors import ConfigError


def find_optimizers(given: Any, *, is_protected: bool = False) -> tuple[Optimizer, ...]:
    """Return the torch optimizers in an optimizer, a wrapper of one, or several of them.

    Accelerate wraps one in an object with `.optimizer`, torchtitan several in a container with
    `.optimizers`; hooks must sit on the torch optimizers themselves, where `step` really happens.
    """
    if is_protected and _adds_an_update(given):
        raise ConfigError(
            f"{type(given).__name__} moves the weights itself besides the optimizer inside it, so "
            "its bad steps cannot be discarded; use mode='observe'"
        )
    found = tuple(dict.fromkeys(_unwrap(given)))
    if not found:
        shown = repr(given) if isinstance(given, str | int | float) else type(given).__name__
        raise ConfigError(
            f"no torch optimizer found in {shown[:60]}; pass the object, such as "
            "torch.optim.AdamW(model.parameters())"
        )
    for optimizer in found:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError("LBFGS evaluates a step several times; trimtab cannot watch it")
    return found


def _adds_an_update(given: Any) -> bool:
    """Whether this wraps an optimizer and has a step of its own, as Lookahead does."""
    wraps = isinstance(getattr(given, "optimizer", None), Optimizer)
    is_known = type(given).__module__.startswith("accelerate")
    return isinstance(given, Optimizer) and wraps and "step" in vars(type(given)) and not is_known


def _unwrap(given: Any) -> Iterator[Optimizer]:
    inner = getattr(given, "optimizer", None)
    several = getattr(given, "optimizers", None)
    if isinstance(inner, Optimizer):
        yield from _unwrap(inner)
    elif isinstance(several, list | tuple):
        for part in several:
            yield from _unwrap(part)
    elif isinstance(given, Optimizer):
        yield given
    elif isinstance(given, Iterable) and not isinstance(given, str | torch.Tensor):
        # Letters are strings again, and rows of a parameter are tensors again.
        for part in given:
            yield from _unwrap(part)
