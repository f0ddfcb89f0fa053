"""SkipDetector: whether a step that was recorded has ended without an update.

A loop that leaves a batch out says nothing. What shows is that gradients were cleared or the scaler
updated before the next loss came, or that the guard had clipped already.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.live.measure.step_meter import (
    NO_GRADIENTS,
    Change,
    Mark,
    compare,
    mark,
    sample,
    still_there,
    without,
)
from trimtab.live.ranks.exchange import StepState
from trimtab.live.shield import log
from trimtab.state.sharded_types import is_dtensor
from trimtab.state.training_state import parameters_of

MAX_RECORDS = 20
"""Losses per usual step without any update before the log says so."""

MAX_FIRST_RECORDS = 100
"""The same before the first update, when it is not known how many losses make a step."""

MAX_MISPLACED = 20
"""Steps in a row whose loss was not backpropagated between record and update, or whose gradients
went elsewhere, before the log says so."""

FIRST_UPDATES, EVERY_UPDATES = 64, 16
"""In a loop with one loss a step, its backward pass is looked for in the first updates, and then in
one of so many. Chosen: a loop that records too late does so from its first step on."""

NODES = 3
"""Nodes of a loss's graph that are looked at: what is recorded may be the loss times a number."""


class Backward:
    """Whether a backward pass has reached a loss; a hook on its graph that knows nothing else."""

    def __init__(self, loss: Any) -> None:
        self.has_run = False
        node = loss.grad_fn if isinstance(loss, torch.Tensor) else None
        self.is_known = node is not None
        for _ in range(NODES):
            # A node without parents is that of a parameter, which the next loss reaches, too.
            if node is not None and node.next_functions:
                node.register_prehook(self)
                node = next((parent for parent, _ in node.next_functions if parent), None)

    def __call__(self, gradients: Any) -> None:
        """The gradient of the loss is here."""
        self.has_run = True


class SkipDetector:
    """Compares the gradients of a few parameters from one record to the next."""

    def __init__(
        self, optimizers: Sequence[Optimizer], scaler: Any, *, is_sharded: bool = False
    ) -> None:
        """`is_sharded`: the gradients are not those of the optimizers' parameters."""
        self._optimizers = optimizers
        self._scaler = scaler
        parameters = parameters_of(optimizers)
        self._sample = sample(parameters)
        self._is_sharded = is_sharded or any(map(is_dtensor, parameters))
        self._used = NO_GRADIENTS
        """The gradients that an optimizer has used."""
        self._at_record = NO_GRADIENTS
        self._scaler_version = 0
        self._samples = {o: sample(parameters_of([o])) for o in optimizers}
        self._used_by: dict[Optimizer, Mark] = {}
        self.was_clipped = False
        """Whether the guard has clipped in this step."""
        self.num_updates = 0
        """Updates since the detector was made."""
        self.optimizers_alternate = False
        """Whether the optimizers move one at a time, each with losses of its own."""
        self._num_records = self._records_per_step = 0
        self._num_elsewhere = self._num_too_late = 0
        self._has_warned = False
        self._backward = Backward(None)
        self._began_without_gradients = True

    def note_record(self, loss: Any) -> None:
        now = mark(self._sample)
        self._at_record = without(now, self._used)
        self._used = still_there(self._used, now, self._at_record)
        self._scaler_version = self._version()
        has_gradients = self._at_record.has_gradients
        # A hook on the graph costs as much as all else here: not in every step of a usual loop.
        is_usual = self._num_records == 0 and self._records_per_step == 1
        is_due = self.num_updates < FIRST_UPDATES or self.num_updates % EVERY_UPDATES == 0
        self._num_records += 1
        # A backward pass has run and its gradients are gone: something else has used them.
        went_elsewhere = self._backward.has_run and not has_gradients and self._num_records > 1
        self._num_elsewhere = self._num_elsewhere + 1 if went_elsewhere else 0
        self._began_without_gradients = not has_gradients
        self._backward = Backward(loss if is_due or not is_usual else None)
        usual = self._records_per_step
        limit = MAX_RECORDS * usual if usual else MAX_FIRST_RECORDS
        is_silent = self._num_records >= limit or self._num_elsewhere >= MAX_MISPLACED
        if is_silent and not self._has_warned:
            self._has_warned = True
            log.warning(
                "trimtab: %d losses since the last watched optimizer.step(); if you replaced the "
                "optimizer, call trimtab.watch again",
                self._num_records,
            )

    def note_update(self, optimizer: Optimizer) -> None:
        self._used = mark(self._sample)
        if len(self._optimizers) > 1:
            self._used_by[optimizer] = mark(self._samples[optimizer])
        self.num_updates += 1
        if self._num_records == 1 and self._began_without_gradients and self._backward.is_known:
            self._num_too_late = 0 if self._backward.has_run else self._num_too_late + 1
            if self._num_too_late == MAX_MISPLACED:
                log.warning(
                    "trimtab: the last %d losses came one step late: call guard.record(loss=...) "
                    "before optimizer.step()",
                    MAX_MISPLACED,
                )
        self._records_per_step = max(self._num_records, self._records_per_step)
        self._num_records = 0

    def inspect(self) -> tuple[StepState | None, bool]:
        """Before a further loss of a step: how the step has ended, if it has; and whether a
        backward pass has followed the last loss."""
        if self.scaler_was_updated():
            return StepState.OVERFLOW, False
        if self.was_clipped:
            return StepState.SKIPPED, False
        if self._backward.is_known and not self._backward.has_run and self._began_without_gradients:
            return None, False
        change = compare(self._at_record, self._fresh())
        # A sharded model may hold no gradient between micro-batches.
        if change is Change.REPLACED and not self._is_sharded:
            return StepState.SKIPPED, False
        return None, change is not Change.NONE or self._is_sharded

    def scaler_was_updated(self) -> bool:
        return self._version() != self._scaler_version

    def has_fresh_gradients(self) -> bool:
        return self._fresh().has_gradients

    def fresh_optimizers(self, moving: Optimizer) -> list[Optimizer]:
        """The optimizer that moves, and those that wait with gradients they have not used."""
        if len(self._optimizers) == 1:
            return [moving]
        return [
            optimizer
            for optimizer in self._optimizers
            if optimizer is moving
            or (not self.optimizers_alternate and self._is_waiting(optimizer))
        ]

    def _is_waiting(self, optimizer: Optimizer) -> bool:
        used = self._used_by.get(optimizer)
        return used is None or compare(used, mark(self._samples[optimizer])) is not Change.NONE

    def _fresh(self) -> Mark:
        return without(mark(self._sample), self._used)

    def _version(self) -> int:
        """How often `scaler.update()` has run: it writes to its tensor each time."""
        scale = None if self._scaler is None else getattr(self._scaler, "_scale", None)
        return scale._version if isinstance(scale, torch.Tensor) else 0
