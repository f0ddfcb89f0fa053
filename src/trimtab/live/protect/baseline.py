"""Baseline: what is usual for loss and gradient norm, in buffers of fixed size on the device.

The median and the median deviation of the accepted steps among the last `window`: a spike that was
discarded never enters, and one that was let through hardly moves a median. Worked out anew on a
fixed grid of steps, which is often enough and leaves few operations for the steps in between.
"""

import math
from typing import Any

import torch

from trimtab.core.config import GateConfig

REFRESH_STEPS = 16
"""Steps from one computation of the median to the next: an eighth of the window by default."""

TO_SIGMA = 1.4826
"""A median absolute deviation times this is the standard deviation of a normal distribution."""

LOSS_FLOOR = 0.002
"""The least deviation of the loss, by its size. Without it a loss that hardly moves makes every
batch an outlier. Source: healthy public runs, where 0.05 to 0.5 % gave equal results."""

NORM_FLOOR = 0.03
"""The least deviation of the log of the gradient norm. Source: the same runs."""


class Baseline:
    """Knows the usual loss and log norm, and how far from it a step is.

    Each of the two is measured in sigmas and in a unit of its own: the size of the usual loss, and
    1. So a step is four numbers: loss, loss, log norm, log norm.
    """

    def __init__(self, config: GateConfig, device: torch.device) -> None:
        self._least = config.min_history
        self._window = torch.full((2, config.window), math.inf, device=device)
        """Loss and log norm of the last steps, in a ring; infinite where one was not accepted."""
        self._usual = torch.full((4,), math.nan, device=device)
        self.usual = self._usual[1:3]
        """The usual loss and log norm."""
        self._units = torch.full((4,), math.inf, device=device)
        """What deviations are divided by; infinite while too little is known: nothing deviates."""
        self._steps = 0
        self._missing = torch.full((2,), math.inf, device=device)
        # The units: a constant, a share of the usual loss, a multiple of the median deviation.
        self._constant = torch.tensor([0.0, 0.0, NORM_FLOOR, 1.0], device=device)
        self._by_size = torch.tensor([LOSS_FLOOR, 1.0, 0.0, 0.0], device=device)
        self._by_deviation = torch.tensor([TO_SIGMA, 0.0, TO_SIGMA, 0.0], device=device)

    def deviations(self, step: torch.Tensor) -> torch.Tensor:
        """How far the four numbers of a step are from the usual."""
        return (step - self._usual) / self._units

    def take(self, step: torch.Tensor, enters: torch.Tensor, forget: torch.Tensor) -> None:
        """The step is decided: let it enter or not, or forget all that was before it."""
        self._window.masked_fill_(forget, math.inf)
        self._units.masked_fill_(forget, math.inf)
        place = self._steps % self._window.shape[1]
        self._window[:, place] = torch.where(enters, step[1:3], self._missing)
        self._steps += 1
        if self._steps % REFRESH_STEPS == 0:
            self._refresh()

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on."""
        return {
            "window": self._window.cpu().clone(),
            "usual": self._usual.cpu().clone(),
            "units": self._units.cpu().clone(),
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._window.copy_(state["window"])
        self._usual.copy_(state["usual"])
        self._units.copy_(state["units"])
        self._steps = int(state["steps"])

    def _refresh(self) -> None:
        # What is missing is infinite and sorts behind the rest, so no mask is needed.
        count = (self._window[0] < math.inf).sum().view(1)
        usual = self._middle(self._window, count)
        deviation = self._middle((self._window - usual).abs(), count)
        self._usual = usual.expand(2, 2).flatten()
        self.usual = self._usual[1:3]
        floor = torch.addcmul(self._constant, self._usual.abs(), self._by_size)
        sigmas = deviation.expand(2, 2).flatten() * self._by_deviation
        self._units = torch.where(count < self._least, math.inf, torch.maximum(floor, sigmas))

    def _middle(self, values: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """The median of each row, of its first `count` values by size; of two the upper one."""
        return values.sort(dim=1).values.index_select(1, count >> 1)
