"""Watcher: closes each step, on every rank, whatever happens.

A step is closed behind the last optimizer's update: measure (shielded), cross the boundary (always:
the other ranks wait there), deliver what arrived (shielded).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.boundary import Boundary
from trimtab.live.endings import Endings
from trimtab.live.host_side import HostSide, StepNote
from trimtab.live.sensors import Sensors
from trimtab.live.shield import Shield, log
from trimtab.live.step_hooks import StepHooks
from trimtab.live.step_loop import StepLoop

HOOKS_SILENT = (
    "trimtab: the forward hooks of %s did not fire, so their activations are not recorded; call "
    "trimtab.watch(...) before torch.compile(...), or torch._dynamo.reset() after it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    """What is needed to understand a step's numbers when they arrive."""

    note: StepNote
    full: bool
    own_names: tuple[str, ...]


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
        self._optimizers = optimizers
        self._boundary = boundary
        self._telemetry_steps = telemetry_steps
        self._scaler = scaler
        self._num_losses = 0
        self._num_closed = 0
        self._num_unobserved = 0
        self._has_tested_hooks = False
        self._is_closed = False
        shield.on_catch(self._tell_failure)
        self._hooks = StepHooks(optimizers, self)
        self._endings = Endings(self.close) if host is not None else None

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
        """Measure the gradient norm, unless somebody gave it."""
        if self.is_watching and not self.sensors.has_norm:
            with self.shield.guarding("gradient norm"):
                self.sensors.see_gradient()

    def after_update(self) -> None:
        """Close the step."""
        self._close_step(applied=True)

    def unobserved(self) -> None:
        """Leave alone a step that nobody recorded; the first one is told."""
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
        if self.host is None:
            return
        if was_watching:
            with self.shield.guarding("last records"):
                for label, values in self._boundary.drain():
                    self._deliver(label, values)
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
        shared, own = self.sensors.nothing(full=full), None
        names: tuple[str, ...] = ()
        if self.is_watching:
            with self.shield.guarding("measure"):
                self._fill(note, applied=applied)
                names, own = self.sensors.take_own()
                shared = self.sensors.measure(full=full)
        if self.shield.is_down:
            names, own = (), None
            self._boundary.step_out()
        self._num_losses = 0
        self._num_closed += 1
        self.next_step += 1
        arrived = self._boundary.cross(_Label(note=note, full=full, own_names=names), shared, own)
        if arrived is not None and self.is_watching:
            with self.shield.guarding("deliver"):
                self._deliver(*arrived)
        elif self._boundary.parted and not self.shield.is_down:
            self._tell_failure("another rank", "see that rank's log")

    def _fill(self, note: StepNote, *, applied: bool) -> None:
        """Put down what the host knows of the step."""
        note.norm_is_after_clip = not self.sensors.norm_was_given
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

    def _deliver(self, label: _Label, values: list[float]) -> None:
        if label.full and not self._has_tested_hooks:
            self._has_tested_hooks = True
            silent = self.sensors.silent_blocks(values)
            if silent:
                log.warning(HOOKS_SILENT, ", ".join(silent))
        if self.host is not None and self.sensors.device.type != "meta":
            told = self.sensors.interpret(values, label.own_names, full=label.full)
            self.host.take(label.note, told)

    def _tell_failure(self, place: str, error: str) -> None:
        if self.host is not None:
            facts = {"place": place, "error": error}
            self.host.event("trimtab failed", self.next_step, facts)
