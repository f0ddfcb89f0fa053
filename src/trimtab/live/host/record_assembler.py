"""RecordAssembler: numbers that have arrived from the device become the record of their step.

A step waits here until it is closed, the numbers of each of its optimizers are there and, if it was
measured, its telemetry came with the numbers of the next update. Records leave in their order.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.core import signals
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.measure.activations import read_activations, silent_blocks
from trimtab.live.measure.step_meter import read_head
from trimtab.live.measure.telemetry import read_telemetry
from trimtab.live.protect.gate_reporter import GateReporter
from trimtab.live.ranks.in_flight import StepNote
from trimtab.live.shield import log

HOOKS_SILENT = (
    "trimtab: the forward hooks of %s did not fire, so their activations are not recorded; call "
    "trimtab.watch(...) before torch.compile(...), or torch._dynamo.reset() after it"
)

MAX_PARTIAL = 20
"""Steps in a row that only some ranks have recorded before the log says so."""


@dataclass(slots=True)
class _Waiting:
    """A step whose record does not leave yet."""

    note: StepNote
    found: dict[str, float]
    num_arrived: int = 0
    is_recorded: bool = False
    has_telemetry: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing more comes."""
        note = self.note
        return (
            note.is_closed
            and self.num_arrived >= note.num_exchanges
            and self.has_telemetry >= note.has_telemetry
        )


class RecordAssembler:
    """Hands the records of steps to the recorder, in their order; only on the first rank."""

    def __init__(self, recorder: RunRecorder, slots: Sequence[str], world: int) -> None:
        self._recorder = recorder
        self._slots = slots
        self._world = world
        self._gate = GateReporter(recorder)
        self._waiting: deque[_Waiting] = deque()
        self._has_tested_hooks = False
        self._num_partial = 0

    def add_step(
        self, note: StepNote, head: Mapping[str, float], report: Mapping[str, float]
    ) -> None:
        """Take the sums of one meeting, or of a step that had none; `report` is the gate's."""
        step = next((step for step in self._waiting if step.note is note), None)
        if step is None:
            step = _Waiting(note, read_head(head))
            self._waiting.append(step)
        step.num_arrived += 1
        step.is_recorded = step.is_recorded or head["recorded"] > 0
        self._count_ranks(head["recorded"])
        if report and step.found.get(signals.DISCARDED) != 1.0:  # else it is reported already
            step.found |= self._gate.report(self._recorder.number_of(note), step.found, report)
        self.hand_over()

    def add_telemetry(self, note: StepNote, values: Sequence[float]) -> None:
        """Take the sums of the telemetry of an earlier step."""
        sums = dict(zip(self._slots, values, strict=True))
        for step in self._waiting:
            # Telemetry comes in the order of steps: what an earlier one still waits for was lost.
            step.has_telemetry = True
            if step.note is note:
                self._add_telemetry(step, sums)
                break
        self.hand_over()

    def hand_over(self, *, everything: bool = False) -> None:
        """Give the recorder what is complete, or everything if nothing more will come."""
        while self._waiting and (everything or self._waiting[0].is_complete):
            step = self._waiting.popleft()
            if step.is_recorded:
                self._recorder.record(step.note, step.found)
            else:
                self._recorder.unrecorded(step.note)

    def _count_ranks(self, num_recorded: float) -> None:
        """Warn if for some time only some of the ranks have recorded a loss."""
        is_partial = 0 < num_recorded < self._world
        self._num_partial = self._num_partial + 1 if is_partial else 0
        if self._num_partial == MAX_PARTIAL:
            log.warning(
                "trimtab: only %d of %d ranks record a loss, so it is the mean of theirs; call "
                "guard.record on every rank that has one",
                num_recorded,
                self._world,
            )

    def _add_telemetry(self, step: _Waiting, sums: dict[str, float]) -> None:
        if not self._has_tested_hooks:
            self._has_tested_hooks = True
            silent = silent_blocks(sums)
            if silent and len(silent) * 2 == sum(
                s.startswith(("block:", "written:")) for s in sums
            ):
                log.warning(HOOKS_SILENT, ", ".join(silent))
        found = read_telemetry(sums, self._world)
        if step.found.get(signals.DISCARDED) == 1.0:
            # Without an update, what was computed is the one before.
            found = {n: v for n, v in found.items() if not n.startswith(signals.UPDATE_NORM)}
        step.found |= found | read_activations(sums)
