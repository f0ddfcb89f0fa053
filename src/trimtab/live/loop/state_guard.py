"""StateGuard: what watches over the trained state; this one does nothing, as in most runs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.live.shield import log


class StateGuard:
    """Watches over the trained state and restores it; `Undo` does, in a run that recovers."""

    num_fields: int = 0
    """Numbers that it adds to every exchange."""

    @property
    def harm(self) -> torch.Tensor | None:
        """1 while this rank's state waits for an undo."""
        return None

    @property
    def unable(self) -> tuple[torch.Tensor, ...]:
        """What a rank sends that has failed: no rank undoes anything then."""
        return ()

    def to_send(self, optimizer: Optimizer) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Return what must be known when the findings of this rank come back, and the findings."""
        return None, ()

    def receive(
        self, check: Any, values: Sequence[float], *, is_finite: bool, loss: float | None
    ) -> None:
        """Take what all ranks have found, `lag` exchanges later, and the loss of a step that was
        not discarded."""

    def end_if_asked(self) -> None:
        """Raise RunStopped if the first rank ends the run; on every rank at the same update."""

    def poll(self) -> None:
        """Look for what has happened since the last update: answers, outcomes, incidents."""

    def restore_if_due(self, optimizer: Optimizer) -> bool:
        """Restore the state if that is due; then the step is not to be taken."""
        return False

    def after_update(self, optimizer: Optimizer) -> None:
        """Audit and copy the state after an update, if that is due."""

    def request(self, updates: int) -> None:
        """Undo at least so many updates, because a person asks for it."""
        log.warning("trimtab: nothing is undone: it needs watch(mode='recover')")

    def remember(self, batch: Any) -> None:
        """Keep a copy of a batch of this step, for experiments."""

    def note_change(self) -> None:
        """Code has announced a change: what follows may be on purpose."""

    def close(self) -> None:
        """Give everything back."""
