"""Watcher: closes each step, on every rank, whatever happens.

A step is closed behind the last optimizer's update: measure (shielded), cross the boundary (always:
the other ranks wait there), deliver what arrived (shielded).
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.boundary import Boundary
from trimtab.live.delivery import Delivery, Label
from trimtab.live.endings import Endings
from trimtab.live.host_side import HostSide, StepNote
from trimtab.live.protect.ballot import OUT
from trimtab.live.protect.gate import Decision, Gate
from trimtab.live.protect.words import tell_promotion
from trimtab.live.sensors import Sensors
from trimtab.live.shield import Shield
from trimtab.live.step_hooks import StepHooks
from trimtab.live.step_loop import StepLoop

_Parcel = tuple[Label, torch.Tensor, tuple[torch.Tensor, ...]]
"""What the numbers are, those added up over ranks, and those of this rank alone."""

_NOTHING: tuple[Any, ...] = ()


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
        telemetry_steps: int,
        first_step: int,
        scaler: Any,
    ) -> None:
        self.sensors = sensors
        self.host = host
        """Only the first rank has one."""
        self.shield = shield
        self.next_step = first_step
        self.loop: StepLoop | None = None
        self.gate: Gate | None = None
        """Only a guard that protects has one."""
        self._optimizers = optimizers
        self._boundary = boundary
        self._delivery = Delivery(sensors, host)
        self._telemetry_steps = telemetry_steps
        self._scaler = scaler
        self._norm_was_given = False
        """Of the step that the gates have met for."""
        self._rest: torch.Tensor | None = None
        """Telemetry that waits for the next meeting of the gates."""
        self._num_losses = 0
        self._num_closed = 0
        self._num_unobserved = 0
        self._is_closed = False
        shield.on_catch(self._tell_failure)
        self._hooks = StepHooks(optimizers, self)
        self._endings = Endings(self.close) if host is not None else None

    def protect(self, gate: Gate) -> None:
        """From now on decide about each step before its update."""
        self.gate = gate
        gate.shield.on_catch(self._tell_failure)

    @property
    def is_watching(self) -> bool:
        """Whether anything is still measured here."""
        return not (self._is_closed or self.shield.is_down or self._boundary.parted)

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
            self._meet(self.gate)

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
                for label, values in self._boundary.drain():
                    self._delivery.take(label, values)
                self._delivery.flush()
        with self.shield.guarding("end of the journal"):
            self.host.close(how)
        if self._endings is not None:
            self._endings.remove()

    @property
    def _joins(self) -> bool:
        """Whether this rank still comes to the boundary."""
        # A rank whose guard failed goes on coming until all part: the others wait for it there.
        return not (self._is_closed or self._boundary.parted)

    def _was_skipped(self) -> bool:
        """Whether GradScaler has passed over the optimizer, as it does when a step overflowed.

        What shows is that the gradients have been cleared.
        """
        return self._scaler is not None and self.sensors.gradients_are_gone

    def _close_step(self, *, applied: bool) -> None:
        self._hooks.forget()
        full = self._num_closed % self._telemetry_steps == 0
        note = StepNote(step=self.next_step, clock=time.time())
        decision = self._decision()
        if decision is None:
            label, total, own = self._observe(note, applied=applied, full=full)
        else:
            label, total, own = self._conclude(decision, note, applied=applied, full=full)
        self._num_losses = 0
        self._num_closed += 1
        self.next_step += 1
        arrived = self._boundary.cross(label, total, own)
        if arrived is not None:
            self._receive(*arrived)

    def _observe(self, note: StepNote, *, applied: bool, full: bool) -> _Parcel:
        """Measure a step that ends, and add it up over ranks."""
        shared, names, own = self.sensors.nothing(full=full), _NOTHING, _NOTHING
        if self.is_watching:
            with self.shield.guarding("measure"):
                note.norm_is_after_clip = not self.sensors.norm_was_given
                self._fill(note, applied=applied)
                names, own = self.sensors.take_own()
                shared = self.sensors.measure(full=full)
        if self.shield.is_down:
            names, own = _NOTHING, _NOTHING
            self._boundary.step_out()
        self._rest = None
        label = Label(note=note, has_rest=full, own_names=names)
        return label, self._boundary.reduce(shared), own

    def _conclude(
        self, decision: Decision, note: StepNote, *, applied: bool, full: bool
    ) -> _Parcel:
        """Measure what is left of a step that the gates have met for and that ends now."""
        names, own, rest = _NOTHING, _NOTHING, self.sensors.no_rest() if full else None
        if self.is_watching:
            with self.shield.guarding("measure"):
                note.norm_is_after_clip = not self._norm_was_given
                self._fill(note, applied=applied)
                names, own = self.sensors.take_own()
                rest = torch.cat(self.sensors.measure_rest()) if full else None
        if self.shield.is_down:
            names, own = _NOTHING, _NOTHING
            self._boundary.step_out()
        has_rest, self._rest = self._rest is not None, rest
        # Of a step whose optimizer was passed over, only the vote matters.
        reported, report = decision.told(in_full=applied)
        label = Label(
            note=note,
            has_rest=has_rest,
            rest_follows=full,
            report_names=reported,
            own_names=names,
        )
        return label, decision.total, (*report, *own)

    def _meet(self, gate: Gate) -> None:
        """Come to the meeting of the gates, with what is known of the step or with nothing."""
        head = loss = None
        is_ours = self.sensors.norm_is_of_gradients
        self._norm_was_given = self.sensors.norm_was_given
        if self.is_watching:
            with self.shield.guarding("measure"):
                head = self.sensors.measure_head()
                loss = self.sensors.own_loss()
        if head is None or loss is None:
            head, loss = self.sensors.nothing(full=False), None
            self._boundary.step_out()
        # What was measured behind the last update crosses the ranks now.
        shared = head if self._rest is None else torch.cat((head, self._rest))
        gate.meet(shared, loss, may_shrink=is_ours)

    def _decision(self) -> Decision | None:
        """What the gates have decided about the step that ends; None if nothing is protected."""
        if self.gate is None:
            return None
        decision = self.gate.take()
        if decision is None and self.gate.joins:
            # The optimizer was passed over. The other ranks may have met, and wait for this one.
            self._meet(self.gate)
            decision = self.gate.take()
        return decision

    def _receive(self, label: Label, values: list[float]) -> None:
        """Numbers have arrived: see whether the ranks part, then deliver."""
        if self.gate is not None and label.report_names and not self.gate.parted:
            self.gate.parted = values[label.place_of_vote(len(self.sensors.rest))] == OUT
            if self.gate.parted and not self.gate.shield.is_down and not self.shield.is_down:
                self._tell_failure("another rank", "see that rank's log")
        if self.is_watching:
            with self.shield.guarding("deliver"):
                self._delivery.take(label, values)
        elif self._boundary.parted and not self.shield.is_down:
            self._tell_failure("another rank", "see that rank's log")

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
