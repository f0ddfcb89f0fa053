"""StepFacts: what the host of the first rank adds to a step before it is recorded."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.host.bad_data import BadData
from trimtab.live.host.rollback import RollbackEffect
from trimtab.live.measure.batch_facts import (
    MAX_MICRO_BATCHES,
    MAX_ROWS,
    BatchFacts,
    RowLosses,
)
from trimtab.live.measure.state_facts import OptionWatch
from trimtab.live.measure.step_loop import StepLoop
from trimtab.live.measure.step_meter import UserSignals, main_learning_rate
from trimtab.live.ranks.exchange import StepState, TrainStep, copy_to_host
from trimtab.live.shield import Shields


class StepFacts:
    """Collects the facts of a step."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        scaler: Any,
        shields: Shields,
        device: torch.device,
        row_losses: RowLosses,
        rollback: RollbackEffect,
    ) -> None:
        self._rates = rollback.rates
        self.user = UserSignals(device)
        self.row_losses = row_losses
        self.options = OptionWatch(optimizers)
        self.loop: StepLoop | None = None
        """Only if the user goes through the data by `guard.steps`."""
        self._given: list[Any] = []
        """The batches of the present step, as `record(batch=...)` gave them."""
        self._row_ids: list[tuple[int, ...]] = []
        """For each of its micro-batches, as `record(row_ids=...)` gave them."""
        self._batch_facts = BatchFacts()
        self._optimizers = optimizers
        self._scaler = scaler
        self._shield = shields.user
        self._batch_shield = shields.batches

    @property
    def has_scaler(self) -> bool:
        return self._scaler is not None

    def add_batch(self, batch: Any) -> None:
        """Take a micro-batch of a user who does not go through the data by `guard.steps`."""
        if self.loop is None and len(self._given) < MAX_MICRO_BATCHES:
            self._given.append(batch)

    def add_row_ids(self, ids: Any) -> None:
        """Take the numbers of the rows of a micro-batch; raises ValueError if they are none."""
        if isinstance(ids, torch.Tensor) and ids.device.type != "cpu":
            raise ValueError("row_ids must be on the host")
        numbers = np.asarray(ids)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or len(numbers) > MAX_ROWS:
            raise ValueError("row_ids must be whole numbers, one for each row")
        if len(self._row_ids) < MAX_MICRO_BATCHES:
            self._row_ids.append(tuple(numbers.tolist()))

    def note_loss_scale(self) -> None:
        """Take the scale that this step is computed with; `scaler.update()` changes it."""
        scale = getattr(self._scaler, "_scale", None)  # get_scale() would wait for the device
        if isinstance(scale, torch.Tensor):  # made by the first use of the scaler
            self.user.add(signals.LOSS_SCALE, scale)

    def has_bad_data(self, bad: BadData) -> bool:
        """Return whether the data of the present step is known to be bad."""
        if self.loop is None or self.loop.data_position not in bad.marks:
            return False
        mark = None
        if not self._batch_shield.is_down:
            with self._batch_shield.guarding("fingerprint"):
                mark = self.loop.fingerprint()
        return bad.has(self.loop.data_position, mark)

    def fill(self, step: TrainStep) -> None:
        found: dict[str, float] = {}
        factor = self._rates.factor
        for name, planned in main_learning_rate(self._optimizers).items():
            rate = planned if factor == 1.0 else planned * factor  # of the update
            if isinstance(rate, torch.Tensor):
                self.user.add(name, rate)
            else:
                found[name] = rate
        given, self._given = self._given, []
        step.row_losses = self.row_losses.pop()
        step.row_ids, self._row_ids = tuple(self._row_ids), []
        if self.loop is not None:
            step.data_position = self.loop.data_position
            found[signals.DATA_SECONDS] = self.loop.data_seconds
        # Under a shield of its own: a batch may hold anything.
        if (self.loop is not None or given) and not self._batch_shield.is_down:
            with self._batch_shield.guarding("batch facts"):
                if self.loop is not None:
                    found |= self.loop.facts()
                    step.token_rows = self.loop.pop_token_rows()
                else:
                    found |= self._batch_facts.measure(given)
                    step.token_rows = self._batch_facts.pop_token_rows()
        on_host: dict[str, float] = {}
        if self.has_scaler or self.user.has_any:
            with self._shield.guarding("note"):
                if step.state is StepState.APPLIED and not self._shield.is_down:
                    self.note_loss_scale()  # a skipped step is closed after `scaler.update()`
                on_host, on_device, values = self.user.pop()
                if values is not None and values.device.type != "meta":
                    step.device_names, step.device_values = on_device, copy_to_host(values)
        step.signals = on_host | found
