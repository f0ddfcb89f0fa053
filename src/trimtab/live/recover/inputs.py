"""What the user gives to recover with: schedulers and other state, refused if it cannot work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trimtab.core.errors import ConfigError


def as_schedulers(given: Any) -> tuple[Any, ...]:
    """Return the schedulers in one, several or none."""
    if given is None:
        return ()
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for scheduler in several:
        _require_state(scheduler, "scheduler")
    return several


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenState:
    """What the user gave as `state`, sorted by kind."""

    schedulers: tuple[Any, ...]
    scaler: Any
    """The GradScaler; None if there is none."""
    others: dict[str, Any]
    """Everything else, by name."""

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "GivenState":
        """Sort the objects of a mapping; a value may be a list of them, or None."""
        schedulers: list[Any] = []
        scaler = None
        others: dict[str, Any] = {}
        for name, value in (given or {}).items():
            several = isinstance(value, list | tuple)
            for place, part in enumerate(value if several else [value]):
                if part is None:
                    continue
                full = f"{name} {place}" if several else name
                _require_state(part, f"state[{full!r}]")
                if _is_scheduler(part):
                    schedulers.append(part)
                elif _is_scaler(part):
                    scaler = part
                else:
                    others[full] = part
        return cls(schedulers=tuple(schedulers), scaler=scaler, others=others)


def require_schedulers(optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> None:
    """Refuse an optimizer whose scheduler is not known: its schedule would not go back."""
    for optimizer in optimizers:
        # torch wraps `step` of an optimizer that a scheduler is made for.
        has_scheduler = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
        if has_scheduler and not any(_may_belong(s, optimizer) for s in schedulers):
            raise ConfigError(
                f"a learning rate scheduler changes {type(optimizer).__name__}, and a rollback "
                "must set it back too: pass it as watch(..., state={'scheduler': scheduler})"
            )


def _is_scheduler(part: Any) -> bool:
    inner = getattr(part, "scheduler", part)  # such as Accelerate's wrapper
    return isinstance(inner, LRScheduler) or hasattr(inner, "get_last_lr")


def _is_scaler(part: Any) -> bool:
    """Return whether it scales losses: torch's GradScaler, or one with the same methods."""
    return hasattr(part, "unscale_") and hasattr(part, "get_scale")


def _may_belong(scheduler: Any, optimizer: Optimizer) -> bool:
    """Whether a scheduler is of this optimizer, or does not show of which one it is."""
    inner = getattr(scheduler, "scheduler", scheduler)  # such as Accelerate's wrapper
    its = getattr(inner, "optimizer", None)
    its = getattr(its, "optimizer", its)
    return its is None or its is optimizer or not isinstance(its, Optimizer)


def _require_state(part: Any, name: str) -> None:
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(part, method, None)):
            raise ConfigError(
                f"{name} is a {type(part).__name__} without {method}, so it cannot be set back; "
                "give an object with state_dict and load_state_dict"
            )
