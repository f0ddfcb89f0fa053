"""HostSide: turns numbers that arrived from the device into records, and records into judgement.

Only the first rank has one: it alone writes the journal and judges, from numbers that were added up
over all ranks.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.core import signals
from trimtab.core.block import NO_POSITION, Block, Event
from trimtab.core.builder import BlockBuilder, Record
from trimtab.core.config import Config
from trimtab.core.incidents import IncidentChange
from trimtab.core.signals import Quality
from trimtab.diagnosis import build_report, make_judge, read_run
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.live.host.ceiling import Ceiling
from trimtab.report.incident_files import write_incidents

log = logging.getLogger("trimtab")

POST_CLIP_ADVICE = (
    "the gradient norm was only seen after your own clipping, so it cannot show how large the "
    "gradient was: clip with guard.clip_grad_norm_(...) or give guard.record(grad_norm=...)"
)


@dataclass(slots=True, kw_only=True)
class StepNote:
    """What the host knows of a step while its numbers are still on the device."""

    step: int
    clock: float
    signals: dict[str, float] = field(default_factory=dict)
    data_position: int = NO_POSITION
    norm_is_after_clip: bool = False
    """Whether the norm was taken in the optimizer's hook, where clipping may lie before it."""


class HostSide:
    """Journals and judges, one record at a time."""

    def __init__(
        self, run: RunDirectory, config: Config, manifest: Mapping[str, Any], *, first_step: int
    ) -> None:
        self._run = run
        earlier = read_journal(run).block if run.exists() else Block.empty()
        self._attempt = int(earlier.attempt[-1]) if len(earlier) else 0
        self._last_clock: float | None = None
        self._made = make_judge(config)
        self._judge = self._made.judge
        for failure in self._made.failures:
            log.warning("trimtab: %s", failure)
        self._untold: list[tuple[str, int]] = []
        """Events that the judge will hear of with the next record."""
        self._ceiling = Ceiling()
        self._has_advised = False
        self.journal = JournalWriter(run, config.journal)
        run.write_manifest(manifest)
        if len(earlier):
            # Only who knows how the run was before can say whether it goes on from there.
            self._judge.update(earlier)
            self._attempt += int(first_step <= earlier.step[-1])
            self.event("resume", first_step, {"last_step": int(earlier.step[-1])})

    def take(self, note: StepNote, numbers: Mapping[str, float]) -> None:
        """Write and judge the record of one step."""
        values = dict(numbers)
        norm = values.get(signals.GRAD_NORM)
        if note.norm_is_after_clip and norm is not None and self._ceiling.holds(norm):
            values[signals.CLIPPED_GRAD_NORM] = values.pop(signals.GRAD_NORM)
            self._advise()
        told = {signals.CLOCK: note.clock, **values, **note.signals}
        told |= self._derived(told)
        tick = self.journal.append(note.step, told, self._attempt, note.data_position)
        record = Record(
            step=note.step,
            tick=tick,
            signals=told,
            attempt=self._attempt,
            data_position=note.data_position,
        )
        self._judge_record(record)

    def event(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        """Journal something that happened, and let the judge know of it."""
        self.journal.event(kind, step, **facts)
        self._untold.append((kind, step))

    def close(self, how: str) -> None:
        """Judge what is open, end the journal, write the post-mortems."""
        for change in self._judge.finish().changes:
            self._tell(change)
        self.journal.close(how)
        self._write_postmortems()

    def _derived(self, told: Mapping[str, float]) -> dict[str, float]:
        """What follows from the numbers of a step and the clock of the one before."""
        derived = {}
        if self._last_clock is not None and told[signals.CLOCK] > self._last_clock:
            seconds = told[signals.CLOCK] - self._last_clock
            derived[signals.STEP_SECONDS] = seconds
            derived[signals.TOKENS_PER_SECOND] = told[signals.TOKENS] / seconds
        self._last_clock = told[signals.CLOCK]
        if signals.UPDATE_NORM in told and told.get(signals.LR, 0.0) > 0:
            derived[signals.UPDATE_PER_LR] = told[signals.UPDATE_NORM] / told[signals.LR]
        return derived

    def _judge_record(self, record: Record) -> None:
        builder = BlockBuilder()
        builder.add(record)
        for kind, step in self._untold:
            builder.add_event(Event(kind=kind, tick=record.tick, step=step))
        self._untold.clear()
        for change in self._judge.update(builder.build()).changes:
            self._tell(change)

    def _advise(self) -> None:
        if not self._has_advised:
            self._has_advised = True
            self.journal.quality(signals.CLIPPED_GRAD_NORM, Quality.POST_CLIP)
            log.warning("trimtab: %s", POST_CLIP_ADVICE)

    def _tell(self, change: IncidentChange) -> None:
        incident = change.incident
        self.journal.event(
            "incident",
            incident.last.step,
            transition=change.transition,
            number=incident.number,
            onset=incident.onset.step,
            peak_loss=incident.peak.loss if incident.peak.loss is not None else math.nan,
            incident_class=incident.incident_class,
            symptoms=incident.symptoms,
        )

    def _write_postmortems(self) -> None:
        if not self._judge.incidents:
            return
        report = build_report(self._made, read_run(self._run), name=str(self._run.root))
        write_incidents(report, self._run.incidents)
