"""LocalGradients: how large this rank's own gradients are, before ranks average them.

In `optimizer.step()` the gradients of all ranks are the same, and do not show which rank computed
them wrongly. So while one is suspected, hooks look at each gradient as it is computed. They change
nothing. Under FSDP2 they do not see it, and nothing is measured.
"""

from collections.abc import Sequence

import torch
from torch.utils.hooks import RemovableHandle

from trimtab.live.measure.numbers import root
from trimtab.live.ranks.rank_vote import with_rank

NOT_SEEN = -1.0
"""What is sent while nothing is measured; a sum of squares is never negative."""


class LocalGradients:
    """The sum of squares of the gradients of one step, on this rank."""

    def __init__(self, parameters: Sequence[torch.Tensor], device: torch.device) -> None:
        self._parameters = parameters
        self._squares = torch.full((1,), NOT_SEEN, dtype=torch.float32, device=device)
        self._handles: list[RemovableHandle] = []
        self._last = self._squares.clone()

    @property
    def is_armed(self) -> bool:
        """Whether gradients are looked at."""
        return bool(self._handles)

    def arm(self) -> None:
        """Look at gradients from now on."""
        if not self._handles:
            self._handles = [
                parameter.register_hook(self._add)
                for parameter in self._parameters
                if parameter.requires_grad
            ]

    def disarm(self) -> None:
        """Look no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._squares.fill_(NOT_SEEN)
        self._last.fill_(NOT_SEEN)

    def pop(self, rank: int) -> torch.Tensor:
        """What this step's gradients add up to, with the rank, in a number that sorts by it."""
        packed = with_rank(self._squares, rank)
        self._last.copy_(self._squares)
        self._squares.fill_(NOT_SEEN)
        return packed

    def read_last(self) -> float | None:
        """The norm of the last step's gradients on this rank; None if nothing was seen.

        Reads the device: only in steps that are done again for an experiment.
        """
        squares = float(self._last)
        return None if squares < 0 else root(squares)

    @torch.no_grad()
    def _add(self, gradient: torch.Tensor) -> None:
        squares = torch.linalg.vector_norm(gradient, dtype=torch.float32).square()
        self._squares.clamp_(min=0.0).add_(squares)
