"""Delivery: numbers that have arrived from the device become the record of their step.

Telemetry comes in parts, with the numbers of later steps; until its last part is there, its step
and those behind it wait here, so that records leave in their order.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.core import signals
from trimtab.live.host.freight import Part
from trimtab.live.host.host_side import HostSide, StepNote
from trimtab.live.measure.sensors import HEAD, Sensors
from trimtab.live.protect.words import GateWords
from trimtab.live.shield import log

HOOKS_SILENT = (
    "trimtab: the forward hooks of %s did not fire, so their activations are not recorded; call "
    "trimtab.watch(...) before torch.compile(...), or torch._dynamo.reset() after it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is needed to understand a step's numbers when they arrive."""

    note: StepNote
    rest_follows: bool
    """Whether the step has telemetry, which comes in parts of this parcel or of later ones."""
    part: Part | None
    """The part of telemetry that is among the numbers, of this step or of an earlier one."""
    report_names: tuple[str, ...] = ()
    """The names of what the gate reports, the vote first; empty if there is no gate."""
    own_names: tuple[str, ...]

    @property
    def place_of_vote(self) -> int:
        """Where among the numbers the vote is."""
        return len(HEAD) + (0 if self.part is None else self.part.num_slots)


@dataclass(slots=True)
class _Held:
    """A record that does not leave yet."""

    note: StepNote
    told: dict[str, float]
    awaits_rest: bool


class Delivery:
    """Hands the records of steps to the host side, in their order."""

    def __init__(self, sensors: Sensors, host: HostSide | None) -> None:
        self._sensors = sensors
        self._host = host
        self._words = GateWords(host)
        self._held: deque[_Held] = deque()
        self._rest: dict[str, float] = {}
        """The telemetry that has come so far."""
        self._has_tested_hooks = False

    def take(self, label: Label, values: list[float]) -> None:
        """Take the numbers of one step, on every rank."""
        if self._sensors.device.type == "meta":  # there are only shapes on meta
            return
        riding = () if label.part is None else self._sensors.rest[label.part.slots]
        names = (*HEAD, *riding, *label.report_names, *label.own_names)
        sums = dict(zip(names, values, strict=True))
        if self._host is not None:
            told = self._sensors.interpret_head(sums)
            told |= {name: sums[name] for name in label.own_names}
            if len(label.report_names) > 1:
                told |= self._words.tell(label.note.step, told, sums)
            self._held.append(_Held(label.note, told, awaits_rest=label.rest_follows))
        if label.part is not None:
            self._rest |= {name: sums[name] for name in riding}
            self._take_part(label.part)
        self._release()

    def flush(self) -> None:
        """Deliver what waits for telemetry that will never come."""
        for held in self._held:
            held.awaits_rest = False
        self._release()

    def _take_part(self, part: Part) -> None:
        for held in self._held:
            if held.note is part.note:
                break
            held.awaits_rest = False  # of an earlier step no more parts come
        if not part.is_last:
            return
        if not self._has_tested_hooks:
            self._has_tested_hooks = True
            silent = self._sensors.silent_blocks(self._rest)
            if silent:
                log.warning(HOOKS_SILENT, ", ".join(silent))
        for held in self._held:
            if held.note is part.note:
                rest = self._sensors.interpret_rest(self._rest)
                held.told |= _without_update(rest) if _was_discarded(held.told) else rest
                held.awaits_rest = False
        self._rest = {}

    def _release(self) -> None:
        while self._held and not self._held[0].awaits_rest:
            ready = self._held.popleft()
            if self._host is not None:
                self._host.take(ready.note, ready.told)


def _was_discarded(told: Mapping[str, float]) -> bool:
    return told.get(signals.DISCARDED) == 1.0


def _without_update(rest: Mapping[str, float]) -> dict[str, float]:
    """The telemetry of a step without an update: what was worked out is the one before."""
    return {name: v for name, v in rest.items() if not name.startswith(signals.UPDATE_NORM)}
