"""StepFacts: what goes into a record besides the sums over ranks, on the first rank.

Learning rates, loss scale, facts of the batch, and the user's signals.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.host.in_flight import copy_to_host
from trimtab.live.host.step_note import StepNote, StepState
from trimtab.live.loop.step_loop import StepLoop
from trimtab.live.measure.step_meter import UserSignals
from trimtab.live.optimizers import main_learning_rate
from trimtab.live.recover.holds import Holds
from trimtab.live.shield import Shield


class StepFacts:
    """Collects the facts of a step and writes them into its note."""

    def __init__(
        self, optimizers: Sequence[Optimizer], scaler: Any, shield: Shield, device: torch.device
    ) -> None:
        self.user = UserSignals(device)
        self.loop: StepLoop | None = None
        """Only if the user goes through the data by `guard.steps`."""
        self._optimizers = optimizers
        self._scaler = scaler
        self._shield = shield

    def note_loss_scale(self) -> None:
        """Take the scale that this step is computed with; `scaler.update()` changes it."""
        scale = getattr(self._scaler, "_scale", None)  # get_scale() would wait for the device
        if isinstance(scale, torch.Tensor):  # made by the first use of the scaler
            self.user.add(signals.LOSS_SCALE, scale)

    def fill(self, note: StepNote, holds: Holds) -> None:
        """Write the facts into the note of a step that ends."""
        if holds.is_active:
            planned = main_learning_rate(self._optimizers).get(signals.LR)
            if planned is not None:
                self._add_rate(note, signals.PLANNED_LR, planned)
            with holds.effective(self._optimizers):
                self._add_rates(note)
        else:
            self._add_rates(note)
        if self.loop is not None:
            note.data_position = self.loop.data_position
            note.signals |= self.loop.facts()
        with self._shield.guarding("note"):
            if note.state is StepState.APPLIED and not self._shield.is_down:
                self.note_loss_scale()  # a skipped step is closed after `scaler.update()`
            on_host, names, values = self.user.pop()
            note.signals = on_host | note.signals
            if values is not None and values.device.type != "meta":
                note.device_names, note.device_values = names, copy_to_host(values)

    def _add_rates(self, note: StepNote) -> None:
        for name, rate in main_learning_rate(self._optimizers).items():
            self._add_rate(note, name, rate)

    def _add_rate(self, note: StepNote, name: str, rate: float | torch.Tensor) -> None:
        if isinstance(rate, torch.Tensor):
            self.user.add(name, rate)
        else:
            note.signals[name] = rate
