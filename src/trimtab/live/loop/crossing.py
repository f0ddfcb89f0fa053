"""Crossing: what a step has measured crosses the ranks and comes to the host, whatever fails.

    observe    at the end of a step: head and telemetry, one all_reduce
    protect    before the update:    head and telemetry of earlier steps, the decision (`meet`)
               at the end:           only what was measured behind the update is put by

The other ranks wait at the boundary, so every step comes there, on every rank: with what was
measured (shielded), or with nothing and the word that this rank has failed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trimtab.live.host.delivery import Delivery, Label
from trimtab.live.host.freight import Freight, Part
from trimtab.live.host.host_side import StepNote
from trimtab.live.measure.sensors import Sensors
from trimtab.live.protect.gate import Decision, Gate
from trimtab.live.ranks.ballot import OUT
from trimtab.live.ranks.boundary import Boundary
from trimtab.live.shield import Shield


@dataclass(slots=True)
class _Found:
    """What was measured at the end of a step."""

    head: torch.Tensor | None = None
    """None if it has crossed before the update."""
    rest: torch.Tensor | None = None
    """Only some steps have one."""
    own_names: tuple[str, ...] = ()
    own: tuple[torch.Tensor, ...] = ()


class Crossing:
    """Takes every step over the ranks and to the host."""

    def __init__(
        self,
        sensors: Sensors,
        boundary: Boundary,
        delivery: Delivery,
        shield: Shield,
        *,
        telemetry_every: int,
        tell_failure: Callable[[str, str], None],
    ) -> None:
        self.gate: Gate | None = None
        """Only a guard that protects has one."""
        self._sensors = sensors
        self._boundary = boundary
        self._delivery = delivery
        self._shield = shield
        self._telemetry_steps = telemetry_every
        self._tell_failure = tell_failure
        self._freight = Freight(len(sensors.rest), telemetry_every)
        self._num_steps = 0
        self._part: Part | None = None
        """What has crossed the ranks with the step that the gates have met for."""
        self._norm_was_given = False
        """Of that step."""

    @property
    def is_measuring(self) -> bool:
        """Whether anything is still measured here."""
        return not (self._shield.is_down or self._boundary.parted)

    @property
    def joins(self) -> bool:
        """Whether this rank still comes to the boundary."""
        # A rank whose guard failed goes on coming until all part: the others wait for it there.
        return not self._boundary.parted

    def meet(self, gate: Gate) -> None:
        """Come to the meeting of the gates, with what is known of the step or with nothing."""
        head = loss = None
        is_ours = self._sensors.norm_is_of_gradients
        self._norm_was_given = self._sensors.norm_was_given
        if self.is_measuring:
            with self._shield.guarding("measure"):
                head = self._sensors.measure_head()
                loss = self._sensors.own_loss()
        if head is None or loss is None:
            head, loss = self._sensors.no_head(), None
            self._boundary.step_out()
        self._part, shared = self._freight.join(head)
        gate.meet(shared, loss, may_shrink=is_ours)

    def end_step(self, note: StepNote, *, applied: bool) -> None:
        """Close a step: measure what is left of it, send it, take what arrives."""
        decision = self._decision()
        is_full = self._num_steps % self._telemetry_steps == 0
        self._num_steps += 1
        found = self._measure(note, with_head=decision is None, with_rest=is_full)
        reported: tuple[str, ...] = ()
        report: tuple[torch.Tensor, ...] = ()
        if found.rest is not None:  # where gates have met, it is too late for this step
            self._freight.load(note, found.rest)
        if decision is None:
            head = self._sensors.no_head() if found.head is None else found.head
            part, shared = self._freight.join(head)
            total = self._boundary.reduce(shared)
        else:
            part, total = self._part, decision.total
            # Of a step whose optimizer was passed over, only the vote matters.
            reported, report = decision.told(in_full=applied)
        label = Label(
            note=note,
            rest_follows=is_full,
            part=part,
            report_names=reported,
            own_names=found.own_names,
        )
        arrived = self._boundary.cross(label, total, (*report, *found.own))
        if arrived is not None:
            self._receive(*arrived)

    def drain(self) -> None:
        """Deliver what is still under way; only at the end of a run."""
        for label, values in self._boundary.drain():
            self._delivery.take(label, values)
        self._delivery.flush()

    def _measure(self, note: StepNote, *, with_head: bool, with_rest: bool) -> "_Found":
        """What there is to tell of a step."""
        found = _Found()
        if self.is_measuring:
            with self._shield.guarding("measure"):
                found.own_names, found.own = self._sensors.take_own()
                if with_head:
                    self._norm_was_given = self._sensors.norm_was_given
                    found.head = self._sensors.measure_head()
                note.norm_is_after_clip = not self._norm_was_given
                if with_rest:
                    found.rest = self._sensors.measure_rest()
        if self._shield.is_down:
            found.own_names, found.own = (), ()
            self._boundary.step_out()
        if with_rest and found.rest is None:
            found.rest = self._sensors.no_rest()
        return found

    def _decision(self) -> Decision | None:
        """What the gates have decided about the step that ends; None if nothing is protected."""
        if self.gate is None:
            return None
        decision = self.gate.take()
        if decision is None and self.gate.joins:
            # The optimizer was passed over. The other ranks may have met, and wait for this one.
            self.meet(self.gate)
            decision = self.gate.take()
        return decision

    def _receive(self, label: Label, values: list[float]) -> None:
        """Numbers have arrived: see whether the ranks part, then deliver."""
        gate = self.gate
        if gate is not None and label.report_names and not gate.parted:
            gate.parted = values[label.place_of_vote] == OUT
            if gate.parted and not gate.shield.is_down and not self._shield.is_down:
                self._tell_failure("another rank", "see that rank's log")
        if self.is_measuring:
            with self._shield.guarding("deliver"):
                self._delivery.take(label, values)
        elif self._boundary.parted and not self._shield.is_down:
            self._tell_failure("another rank", "see that rank's log")
