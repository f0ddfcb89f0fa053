"""RecordAssembler: numbers that have arrived from the device become the record of their step.

Telemetry comes in chunks, with the numbers of later steps; until its last chunk is there, its step
and those after it wait here, so that records leave in their order.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.core import signals
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.host.step_note import StepNote
from trimtab.live.host.telemetry_chunks import Chunk
from trimtab.live.measure.activations import read_activations, silent_blocks
from trimtab.live.measure.step_meter import read_head
from trimtab.live.measure.telemetry import read_telemetry
from trimtab.live.protect.gate_reporter import GateReporter
from trimtab.live.shield import log

HOOKS_SILENT = (
    "trimtab: the forward hooks of %s did not fire, so their activations are not recorded; call "
    "trimtab.watch(...) before torch.compile(...), or torch._dynamo.reset() after it"
)

MAX_PARTIAL = 20
"""Steps in a row that only some ranks have recorded before the log says so."""


@dataclass(slots=True)
class _Held:
    """A record that does not leave yet."""

    note: StepNote
    found: dict[str, float] = field(default_factory=dict)
    num_arrived: int = 0
    is_recorded: bool = False
    has_all_telemetry: bool = False


class RecordAssembler:
    """Hands the records of steps to the recorder, in their order; only on the first rank."""

    def __init__(self, recorder: RunRecorder, slots: Sequence[str], world: int) -> None:
        self._recorder = recorder
        self._slots = slots
        self._world = world
        self._gate = GateReporter(recorder)
        self._held: deque[_Held] = deque()
        self._telemetry: dict[str, float] = {}
        """What has come so far of the telemetry under way."""
        self._has_tested_hooks = False
        self._num_partial = 0

    def add_step(
        self, note: StepNote, head: Mapping[str, float], report: Mapping[str, float]
    ) -> None:
        """Take the sums of one meeting, or of a step that had none; `report` is the gate's."""
        held = next((held for held in self._held if held.note is note), None)
        if held is None:
            held = _Held(note)
            self._held.append(held)
            held.found = read_head(head)
        held.num_arrived += 1
        held.is_recorded = held.is_recorded or head["recorded"] > 0
        self._count_ranks(head["recorded"])
        if report and held.found.get(signals.DISCARDED) != 1.0:  # else it is reported already
            held.found |= self._gate.report(self._recorder.number_of(note), held.found, report)
        self.release()

    def add_chunk(self, chunk: Chunk, values: Sequence[float]) -> None:
        """Take a part of the telemetry of an earlier step."""
        names = self._slots[chunk.start : chunk.start + len(values)]
        self._telemetry |= dict(zip(names, values, strict=False))
        for held in self._held:
            if held.note is chunk.note:
                break
            held.has_all_telemetry = True  # of an earlier step no more chunks come
        if not chunk.is_last:
            return
        found, self._telemetry = self._telemetry, {}
        for held in self._held:
            if held.note is chunk.note:
                self._add_telemetry(held, found)
        self.release()

    def release(self) -> None:
        """Hand over what is complete."""
        while self._held and self._is_complete(self._held[0]):
            self._hand_over(self._held.popleft())

    def flush(self) -> None:
        """Hand over everything: nothing more will come."""
        while self._held:
            self._hand_over(self._held.popleft())

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

    def _is_complete(self, held: _Held) -> bool:
        note = held.note
        return (
            note.is_closed
            and held.num_arrived >= note.num_meetings
            and (held.has_all_telemetry or not note.has_telemetry)
        )

    def _hand_over(self, held: _Held) -> None:
        if held.is_recorded:
            self._recorder.record(held.note, held.found)
        else:
            self._recorder.unrecorded(held.note)

    def _add_telemetry(self, held: _Held, sums: dict[str, float]) -> None:
        held.has_all_telemetry = True
        if not self._has_tested_hooks:
            self._has_tested_hooks = True
            silent = silent_blocks(sums)
            if silent and len(silent) * 2 == sum(
                s.startswith(("block:", "written:")) for s in sums
            ):
                log.warning(HOOKS_SILENT, ", ".join(silent))
        found = read_telemetry(sums, self._world)
        if held.found.get(signals.DISCARDED) == 1.0:
            # Without an update, what was computed is the one before.
            found = {n: v for n, v in found.items() if not n.startswith(signals.UPDATE_NORM)}
        held.found |= found | read_activations(sums)
