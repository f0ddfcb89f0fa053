"""Budget: how often the gate may act before what it acts on must be part of the data.

An accident is rare. What keeps coming is a mode of the data, a new level, or damaged weights: each
has to be learnt, and a rule without a budget withholds it for ever.
"""

from typing import Any

import torch

from trimtab.core.config import GateConfig

ODD, EXCESS, EXTREME, ACCIDENT, LET_THROUGH = range(5)
"""The tests of the rule, in their order; each has a counter."""


class Budget:
    """Counts odd steps in a row, and how often each of the other tests has acted."""

    def __init__(self, config: GateConfig, device: torch.device) -> None:
        scaled = 1.0 - 1.0 / config.scale_memory_steps
        discarded = 1.0 - 1.0 / config.discard_memory_steps
        self.spent = torch.zeros(5, dtype=torch.float32, device=device)
        """Odd steps in a row; of the others, how often they acted, fading with every step."""
        fading = [scaled, scaled, discarded, 0.0]
        self._after_odd = self.spent.new_tensor([1.0, *fading])
        self._after_usual = self.spent.new_tensor([0.0, *fading])

    def update(self, hits: torch.Tensor, is_odd: torch.Tensor) -> None:
        """Count a step; `hits` are the tests that acted on it, in their order."""
        self.spent.mul_(torch.where(is_odd, self._after_odd, self._after_usual)).add_(hits)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on; the tensor is not copied."""
        return {"spent": self.spent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.spent.copy_(state["spent"])
