"""Budget: how many steps may be discarded before the rule must be wrong.

Where the level itself has moved (a new data mix, a higher learning rate), every step looks odd, and
a rule without a budget discards for ever.
"""

from typing import Any

import torch

from trimtab.core.config import GateConfig


class Budget:
    """Counts finite steps that were turned down; those that are not finite cost nothing."""

    def __init__(self, config: GateConfig, device: torch.device) -> None:
        fading = 1.0 - 1.0 / config.discard_memory_steps
        most = [float(config.max_consecutive_discards), float(config.max_recent_discards)]
        self._most = torch.tensor(most, device=device)
        self._if_turned_down = torch.tensor([1.0, fading], device=device)
        self._if_not = torch.tensor([0.0, fading], device=device)
        self._spent = torch.zeros(2, device=device)
        """In a row, and recently: the latter decays by 1 / `discard_memory_steps` a step."""

    def is_spent(self) -> torch.Tensor:
        """Whether nothing more may be turned down."""
        return (self._spent >= self._most).any(dim=0, keepdim=True)

    def take(self, turned_down: torch.Tensor) -> None:
        """The step is decided: count it."""
        kept = torch.where(turned_down, self._if_turned_down, self._if_not)
        self._spent.mul_(kept).add_(turned_down)

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on."""
        return {"spent": self._spent.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._spent.copy_(state["spent"])
