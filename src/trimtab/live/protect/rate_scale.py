"""RateScale: multiplies the learning rate of each update, on top of any schedule.

before the update    group["lr"]: 3e-4 -> 1.5e-4      a schedule reads and writes its own
after it             group["lr"]: 1.5e-4 -> 3e-4      numbers, and never sees the factor
"""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class RateScale:
    """Scales the learning rate of every update; with a factor of 1 it is not called."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.applied = 1.0
        """The factor that the last update was made with: 1 if an optimizer finds its own rate."""
        self._held: dict[Optimizer, list[tuple[dict[str, Any], Any, Any]]] = {}
        """The groups that are scaled, each with the rate of its schedule and the scaled one."""

    def before(self, optimizer: Optimizer) -> None:
        """Runs before the update, on all ranks."""
        self._restore(optimizer)  # the update before may have raised
        held = self._held[optimizer] = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, Tensor | float | int):
                group["lr"] = rate * self.factor
                held.append((group, rate, group["lr"]))

    def after(self, optimizer: Optimizer) -> None:
        """Runs after the update, before anything else looks at the rate."""
        is_whole = self._restore(optimizer) == len(optimizer.param_groups)
        self.applied = self.factor if is_whole else 1.0

    def _restore(self, optimizer: Optimizer) -> int:
        """Give the groups back to their schedule; return how many still had the scaled rate."""
        scaled = [held for held in self._held.pop(optimizer, ()) if held[0].get("lr") is held[2]]
        for group, rate, _ in scaled:  # the others were set by somebody meanwhile
            group["lr"] = rate
        return len(scaled)
