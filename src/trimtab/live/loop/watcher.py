"""Watcher: knows when a step begins and ends, on every rank, whatever happens.

A step ends behind the last optimizer's update, or without one: then the next record or the loop
tells. What a step has measured goes by Crossing.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.host.delivery import Delivery
from trimtab.live.host.host_side import HostSide, StepNote
from trimtab.live.loop.crossing import Crossing
from trimtab.live.loop.exit_hooks import Endings
from trimtab.live.loop.step_hooks import StepHooks
from trimtab.live.loop.step_loop import StepLoop
from trimtab.live.measure.sensors import Sensors
from trimtab.live.protect.gate import Gate
from trimtab.live.protect.words import tell_promotion
from trimtab.live.ranks.boundary import Boundary
from trimtab.live.shield import Shield


class Watcher:
    """The inside of a guard: listens to the optimizers and closes steps."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        sensors: Sensors,
        boundary: Boundary,
        host: HostSide | None,
        shield: Shield,
        *,
        telemetry_every: int,
        first_step: int,
        scaler: Any,
    ) -> None:
        self.sensors = sensors
        self.host = host
        """Only the first rank has one."""
        self.shield = shield
        self.next_step = first_step
        self.loop: StepLoop | None = None
        self._optimizers = optimizers
        self._crossing = Crossing(
            sensors,
            boundary,
            Delivery(sensors, host),
            shield,
            telemetry_every=telemetry_every,
            tell_failure=self._tell_failure,
        )
        self._scaler = scaler
        self._num_losses = 0
        self._num_unobserved = 0
        self._is_closed = False
        shield.on_catch(self._tell_failure)
        self._hooks = StepHooks(optimizers, self)
        self._endings = Endings(self.close) if host is not None else None

    def protect(self, gate: Gate) -> None:
        """From now on decide about each step before its update."""
        self._crossing.gate = gate
        gate.shield.on_catch(self._tell_failure)

    @property
    def gate(self) -> Gate | None:
        """What decides about steps; only a guard that protects has one."""
        return self._crossing.gate

    @property
    def is_watching(self) -> bool:
        """Whether anything is still measured here."""
        return not self._is_closed and self._crossing.is_measuring

    def count_loss(self) -> None:
        """The user recorded a loss; close a step that ended without its optimizer."""
        # A sharded model may hold no gradient between micro-batches, so there it would be a guess.
        is_plain_loop = self.loop is None and not self.sensors.is_sharded
        if self._num_losses and (
            self._hooks.is_under_way or (is_plain_loop and self._was_skipped())
        ):
            self._close_step(applied=False)
        if self.gate is not None:
            with self.gate.shield.guarding("new step"):
                self.gate.clear()
        self._num_losses += 1

    def end_step(self, number: int) -> None:
        """The loop has come to the end of a step, whether or not its optimizer moved."""
        if self.is_observed() and (self._hooks.is_under_way or self._was_skipped()):
            self._close_step(applied=False)
        if not self._joins:  # nobody counts here any more, and the loop must go on
            self.next_step = number + 1

    def note_loss_scale(self) -> None:
        """Take the scale that the step at hand is computed with; `scaler.update()` changes it."""
        scale = getattr(self._scaler, "_scale", None)  # get_scale() would wait for the device
        if isinstance(scale, torch.Tensor):  # made by the first use of the scaler
            self.sensors.give_own(signals.LOSS_SCALE, scale)

    def is_observed(self) -> bool:
        """Whether the step at hand was recorded, and this rank still comes to the boundary."""
        return self._joins and self._num_losses > 0

    def before_update(self) -> None:
        """Measure the gradient norm, unless somebody gave it; then decide, if there is a gate."""
        if self.is_watching:
            with self.shield.guarding("gradient norm"):
                if self.sensors.has_norm:
                    self.sensors.unscale_norm()
                else:
                    self.sensors.see_gradient()
        if self.gate is not None and self.gate.joins:
            self._crossing.meet(self.gate)

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """Let the gate keep a bad step from this optimizer."""
        if self.gate is not None:
            self.gate.before(optimizer)

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Leave no trace of the gate on this optimizer."""
        if self.gate is not None:
            self.gate.after(optimizer)

    def cannot_gate(self, optimizer: Optimizer, why: str) -> None:
        """Protect no longer: what this optimizer does in a step cannot be discarded as a whole."""
        if self.gate is not None:
            self.gate.refuse(optimizer, why)

    def tell_promotion(self, name: str) -> None:
        """An optimizer now runs fused and did not before."""
        if self.host is not None:
            tell_promotion(self.host, self.next_step, name)

    def after_update(self) -> None:
        """Close the step."""
        self._close_step(applied=True)

    def unobserved(self) -> None:
        """Leave alone a step that nobody recorded; the first one is told."""
        if self.gate is not None:
            self.gate.take()  # what a guard that has just failed had decided
        self._num_unobserved += 1
        if self._num_unobserved == 1 and self.is_watching and self.host is not None:
            with self.shield.guarding("unobserved step"):
                self.host.event("unobserved step", self.next_step, {})

    def close(self, how: str) -> None:
        """Take the hooks off, deliver what is under way, end the journal."""
        if self._is_closed:
            return
        self._hooks.remove()
        if self.sensors.activations is not None:
            self.sensors.activations.remove()
        was_watching, self._is_closed = self.is_watching, True
        if self.gate is not None:
            self.gate.close()
        if self.host is None:
            return
        if was_watching:
            with self.shield.guarding("last records"):
                self._crossing.drain()
        with self.shield.guarding("end of the journal"):
            self.host.close(how)
        if self._endings is not None:
            self._endings.remove()

    @property
    def _joins(self) -> bool:
        """Whether this rank still comes to the boundary."""
        return not self._is_closed and self._crossing.joins

    def _was_skipped(self) -> bool:
        """Whether GradScaler has passed over the optimizer, as it does when a step overflowed.

        What shows is that the gradients have been cleared.
        """
        return self._scaler is not None and self.sensors.gradients_are_gone

    def _close_step(self, *, applied: bool) -> None:
        self._hooks.forget()
        note = StepNote(step=self.next_step, clock=time.time())
        if self.is_watching:
            with self.shield.guarding("note"):
                self._fill(note, applied=applied)
        self._num_losses = 0
        self.next_step += 1
        self._crossing.end_step(note, applied=applied)

    def _fill(self, note: StepNote, *, applied: bool) -> None:
        """Put down what the host knows of the step."""
        rate = self._optimizers[0].param_groups[0]["lr"]
        if isinstance(rate, torch.Tensor):
            self.sensors.give_own(signals.LR, rate)
        else:
            note.signals[signals.LR] = float(rate)
        if applied:  # an abandoned step is closed after `scaler.update()`: too late to ask
            self.note_loss_scale()
        if self.loop is not None:
            note.data_position = self.loop.data_position
            note.signals |= self.loop.facts()
        if not applied and self.host is not None:
            self.host.event("step not applied", note.step, {})

    def _tell_failure(self, place: str, error: str) -> None:
        if self.host is not None:
            facts = {"place": place, "error": error}
            self.host.event("trimtab failed", self.next_step, facts)
