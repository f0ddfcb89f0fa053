"""Delivery: numbers that have arrived from the device become the record of their step.

A protected step with telemetry comes in two parcels: its telemetry is measured after the update,
when the ranks have already met for that step, and crosses them with the next step's numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.core import signals
from trimtab.live.host_side import HostSide, StepNote
from trimtab.live.protect.words import GateWords
from trimtab.live.sensors import HEAD, Sensors
from trimtab.live.shield import log

HOOKS_SILENT = (
    "trimtab: the forward hooks of %s did not fire, so their activations are not recorded; call "
    "trimtab.watch(...) before torch.compile(...), or torch._dynamo.reset() after it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is needed to understand a step's numbers when they arrive."""

    note: StepNote
    has_rest: bool
    """Whether the sums that only some steps have are among the numbers."""
    rest_follows: bool = False
    """Whether those of this step come with the next one's numbers."""
    report_names: tuple[str, ...] = ()
    """The names of what the gate reports, the vote first; empty if there is no gate."""
    own_names: tuple[str, ...]

    def names(self, rest: tuple[str, ...]) -> tuple[str, ...]:
        """The names of all numbers, in their order."""
        return (*HEAD, *(rest if self.has_rest else ()), *self.report_names, *self.own_names)

    def place_of_vote(self, num_rest: int) -> int:
        """Where among the numbers the vote is."""
        return len(HEAD) + (num_rest if self.has_rest else 0)


class Delivery:
    """Hands the records of steps to the host side, in their order."""

    def __init__(self, sensors: Sensors, host: HostSide | None) -> None:
        self._sensors = sensors
        self._host = host
        self._words = GateWords(host)
        self._held: tuple[StepNote, dict[str, float]] | None = None
        """A step whose rest is still to come."""
        self._has_tested_hooks = False

    def take(self, label: Label, values: list[float]) -> None:
        """Take the numbers of one step, on every rank."""
        if self._sensors.device.type == "meta":  # there are only shapes on meta
            return
        sums = dict(zip(label.names(self._sensors.rest), values, strict=True))
        if label.has_rest and not self._has_tested_hooks:
            self._has_tested_hooks = True
            silent = self._sensors.silent_blocks(sums)
            if silent:
                log.warning(HOOKS_SILENT, ", ".join(silent))
        if self._host is not None:
            self._record(self._host, label, sums)

    def flush(self) -> None:
        """Deliver a step whose rest will never come."""
        if self._held is not None and self._host is not None:
            self._host.take(*self._held)
            self._held = None

    def _record(self, host: HostSide, label: Label, sums: Mapping[str, float]) -> None:
        rest = self._sensors.interpret_rest(sums) if label.has_rest else {}
        if self._held is not None:
            note, told = self._held
            self._held = None
            host.take(note, told | _without_update(rest) if _was_discarded(told) else told | rest)
            rest = {}
        told = self._sensors.interpret_head(sums)
        told |= {name: sums[name] for name in label.own_names}
        if len(label.report_names) > 1:
            told |= self._words.tell(label.note.step, told, sums)
        if label.rest_follows:
            self._held = label.note, told
        else:
            host.take(label.note, told | rest)


def _was_discarded(told: Mapping[str, float]) -> bool:
    return told.get(signals.DISCARDED) == 1.0


def _without_update(rest: Mapping[str, float]) -> dict[str, float]:
    """The telemetry of a step without an update: what was worked out is the one before."""
    return {name: v for name, v in rest.items() if not name.startswith(signals.UPDATE_NORM)}
