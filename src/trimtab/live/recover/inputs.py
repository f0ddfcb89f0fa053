"""What the user gives to recover with: schedulers and other state, refused if it cannot work."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from trimtab.core.errors import ConfigError


def as_schedulers(given: Any) -> tuple[Any, ...]:
    """The schedulers in one, several or none."""
    if given is None:
        return ()
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for scheduler in several:
        _require_state(scheduler, "scheduler")
    return several


def as_state(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The user's other state, by name."""
    state = dict(given or {})
    for name, part in state.items():
        _require_state(part, f"state[{name!r}]")
    return state


def require_schedulers(optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> None:
    """Refuse an optimizer whose scheduler is not known: its schedule would not go back."""
    for optimizer in optimizers:
        # torch wraps `step` of an optimizer that a scheduler is made for.
        has_scheduler = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
        if has_scheduler and not any(_may_belong(s, optimizer) for s in schedulers):
            raise ConfigError(
                f"a learning rate scheduler changes {type(optimizer).__name__}, and a rollback "
                "must set it back too: pass it as watch(..., scheduler=scheduler)"
            )


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
