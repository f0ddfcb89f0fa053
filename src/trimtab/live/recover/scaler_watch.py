"""ScalerWatch: a GradScaler that does not call `optimizer.step()` runs no hook of trimtab."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from trimtab.live.shield import Entrance


class ScalerWatch:
    """Tells of the steps that a GradScaler skips: then no hook of the optimizer runs."""

    def __init__(
        self,
        scaler: Any,
        entrance: Entrance,
        *,
        num_updates: Callable[[Optimizer], int | None],
        after_skip: Callable[[Optimizer], None],
    ) -> None:
        """Call `after_skip` with an optimizer that was not stepped; `num_updates` counts its
        steps, and is None of one that is not watched."""
        self._scaler = scaler
        self._entrance = entrance
        self._num_updates = num_updates
        self._after_skip = after_skip
        self._step: Any = getattr(scaler, "step", None)
        if scaler is not None:
            scaler.step = self

    def __call__(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        inner = getattr(optimizer, "optimizer", optimizer)  # such as Accelerate's wrapper
        before = self._entrance("scaler.step", self._num_updates, inner)
        result = self._step(optimizer, *args, **kwargs)  # what it raises is the user's
        self._entrance("scaler.step", self._look, inner, before)
        return result

    def _look(self, optimizer: Any, num_updates: int | None) -> None:
        if num_updates is not None and self._num_updates(optimizer) == num_updates:
            self._after_skip(optimizer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave a copy of the scaler with a method of its own: it is not watched."""
        return getattr, (self._scaler, "step")

    def close(self) -> None:
        """Give the scaler its own method back, if nobody has wrapped it again."""
        if self._scaler is not None and vars(self._scaler).get("step") is self:
            del self._scaler.step
