"""The objects of a run: what a checkpoint holds, what the user gives as `state`, the parameters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trimtab.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenState:
    """What the user gave as `state`, sorted by kind."""

    scaler: Any
    """The GradScaler; None if there is none."""
    others: dict[str, Any]
    """Everything else, by name."""

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "GivenState":
        """Sort the objects of a mapping; a value may be a list of them, or None."""
        scaler = None
        others: dict[str, Any] = {}
        for name, value in (given or {}).items():
            several = isinstance(value, list | tuple)
            for index, part in enumerate(value if several else [value]):
                if part is None:
                    continue
                full = f"{name} {index}" if several else name
                _require_state(part, f"state[{full!r}]")
                if _is_scheduler(part):
                    continue  # the schedule is the user's, and goes on
                if hasattr(part, "unscale_") and hasattr(part, "get_scale"):  # as GradScaler has
                    scaler = part
                else:
                    others[full] = part
        return cls(scaler=scaler, others=others)


def _is_scheduler(part: Any) -> bool:
    inner = getattr(part, "scheduler", part)  # such as Accelerate's wrapper
    return isinstance(inner, LRScheduler) or hasattr(inner, "get_last_lr")


def _require_state(part: Any, name: str) -> None:
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(part, method, None)):
            raise ConfigError(
                f"{name} is a {type(part).__name__} without {method}, so it cannot be set back; "
                "give an object with state_dict and load_state_dict"
            )


class HasState(Protocol):
    """What a scheduler, an EMA or a loader has."""

    def state_dict(self) -> Any:
        """Return all that must be saved."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Load a saved state."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The objects of a run."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    schedulers: Sequence[HasState] = ()
    scaler: Any = None
    state: Mapping[str, HasState] = field(default_factory=dict)
    """What else the user names."""


def parameters_of(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    """Return every parameter that any of the optimizers moves, each once."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return list(dict.fromkeys(parameter for group in groups for parameter in group["params"]))
