"""Random number generators: Python's, numpy's, and torch's on every device in use."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The state of all generators of this process."""

    python: Any
    numpy: Any
    cpu: Tensor
    """torch's generator on the host."""
    accelerators: tuple[Tensor, ...]
    """One state per device of the current accelerator; empty on a machine without one."""


def get_random_state() -> RandomState:
    """The generators as they are now."""
    accelerator = _accelerator()
    states: tuple[Tensor, ...] = ()
    if accelerator is not None:
        states = tuple(torch.get_device_module(accelerator).get_rng_state_all())
    return RandomState(
        python=random.getstate(),
        # The legacy generator is the one that datasets and augmentations use.
        numpy=np.random.get_state(),  # noqa: NPY002
        cpu=torch.get_rng_state(),
        accelerators=states,
    )


def set_random_state(state: RandomState) -> None:
    """Set the generators back."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)  # noqa: NPY002
    torch.set_rng_state(state.cpu)
    if state.accelerators:
        accelerator = _accelerator()
        torch.get_device_module(accelerator).set_rng_state_all(list(state.accelerators))


def _accelerator() -> torch.device | None:
    is_there = torch.accelerator.is_available()
    return torch.accelerator.current_accelerator() if is_there else None


def equal(one: RandomState, other: RandomState) -> bool:
    """Whether nothing was drawn between the two."""
    return (
        one.python == other.python
        and one.numpy[2:] == other.numpy[2:]
        and np.array_equal(one.numpy[1], other.numpy[1])
        and torch.equal(one.cpu, other.cpu)
        and len(one.accelerators) == len(other.accelerators)
        and all(map(torch.equal, one.accelerators, other.accelerators))
    )
