"""RunRecorder: records are journalled and judged, one at a time.

Only the first rank has one: it alone writes the journal and judges, from numbers that were added up
over all ranks.
"""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from trimtab.core import signals
from trimtab.core.block import Block, Event, Record
from trimtab.core.config import Config
from trimtab.core.events import EXPERIMENT, NOT_UNDONE, SLOW_RANK, UNDO
from trimtab.core.incidents import Incident, IncidentChange
from trimtab.core.run import RunFacts
from trimtab.core.signals import Quality
from trimtab.core.text import counted
from trimtab.core.token_losses import NUM_BINS, shares
from trimtab.diagnosis import build_report
from trimtab.explain.diagnosis import Diagnosis
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.journal.exit_request import announce_run
from trimtab.journal.resume.journal_past import JournalPast
from trimtab.judge import Judge
from trimtab.live.host.bad_data import BadData
from trimtab.live.host.batch_memory import BatchMemory
from trimtab.live.host.incident_log import IncidentLog, explanation_facts
from trimtab.live.host.judge_state import JudgeState
from trimtab.live.host.resume_facts import ResumeFacts, report_audit
from trimtab.live.host.ship_process import ShipProcess
from trimtab.live.ranks.exchange import StepNote
from trimtab.live.shield import Shield, log
from trimtab.report.incident_files import write_incidents
from trimtab.state.checkpoints.verdicts import RunHistory

_TOLERANCE = 1e-4
"""`clip_grad_norm_` divides by norm + 1e-6, so a clipped norm is short of the clip value by a
millionth of its size and by rounding, which in half precision is larger."""

_ROUND_TOLERANCE = 1e-5
"""How near to a round number a norm has to be at its first touch. Tighter, because any norm may
come near one by chance: at 1e-4 one unclipped run in ten had such a norm."""


class ClipDetector:
    """Finds the one value that norms reach and never pass: they were clipped before we saw them.

    An optimizer hook runs after the user's own clipping, so a clipped gradient shows the clip value
    and nothing of its true size. A norm below the clip value was not touched and is true.
    """

    def __init__(self) -> None:
        self._largest = 0.0
        self.num_clipped = 0
        """Norms at the present ceiling; a larger norm shows that there was none."""

    def is_clipped(self, norm: float) -> bool:
        """Whether this norm sits at the largest value so far."""
        if not math.isfinite(norm) or norm <= 0 or norm < self._largest * (1 - _TOLERANCE):
            return False
        if norm <= self._largest * (1 + _TOLERANCE):
            self.num_clipped += 1
            return True  # the largest so far, a second time
        self._largest = norm
        self.num_clipped = int(_is_round(norm))
        return self.num_clipped > 0


def _is_round(norm: float) -> bool:
    """Whether the norm is a number that people write: clip values have one or two digits.

    By chance 8 in 10,000 norms are; one that is also the largest so far is then taken for clipped,
    which loses a value and records nothing false.
    """
    written = float(f"{norm:.1e}")
    return abs(norm - written) <= _ROUND_TOLERANCE * written


class JournalHealth:
    """Reports what the journal loses or cannot write, once in the log."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._num_dropped = 0
        self._error: Exception | None = None

    def check(self, step: int) -> None:
        """Report records that were lost and what the disk has said."""
        dropped, error = self._journal.dropped, self._journal.error
        if dropped > self._num_dropped and self._num_dropped == 0:
            log.warning("trimtab: the journal loses records from step %d on", step)
        self._num_dropped = dropped
        if error is not None and self._error is None:
            log.warning("trimtab: the journal cannot be written: %s", error)
            self._error = error

    def remarks(self) -> tuple[str, ...]:
        """What every report must say about the journal."""
        remarks = []
        if self._journal.dropped:
            remarks.append(f"{self._journal.dropped} records were lost: the disk was too slow")
        if self._journal.error is not None:
            remarks.append(f"the journal could not be written: {self._journal.error}")
        return tuple(remarks)


POST_CLIP_ADVICE = (
    "the gradient norm is seen after clipping only; use guard.clip_grad_norm_(...) or "
    "guard.record(grad_norm=...)"
)

CLIPPED_BEFORE_ADVICE = 5
"""Norms at one ceiling before the user is advised: by chance two or three may coincide."""

JUDGE_SECONDS, JUDGE_RECORDS = 1.0, 512
"""Records are judged this often, or when this many wait: many at once cost a twentieth each."""

RECENT_RECORDS = 512
"""Records that are kept to explain an incident when it opens; post-mortems read the journal."""

HIGHER = 1.1
"""A loss above that of the last telemetry by this factor: its token losses are worth recording."""

MAX_UNRECORDED = 20
"""Updates in a row that no rank has recorded before the log says so."""

EXPLAINING_EVENTS = {UNDO, NOT_UNDONE, EXPERIMENT, SLOW_RANK}
"""Kept for explanations, like the records."""


class RunRecorder:
    """Journals and judges, one record at a time."""

    is_recording: Literal[True] = True
    """Whether this rank records; False of a `NoRecorder`."""

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        manifest: Mapping[str, Any],
        *,
        first_step: int,
        shield: Shield | None = None,
        on_incident: Callable[[Incident], None] | None = None,
        batches: BatchMemory | None = None,
    ) -> None:
        self.run = run
        earlier = read_journal(run, find_damage=False).block if run.exists() else Block.empty()
        self.past = _past(earlier, first_step)
        """What the journal says about the state that the run resumes from."""
        self.bad_data = BadData.of_events(earlier.events)
        """The batches that earlier attempts were relaunched because of."""
        self.resume: ResumeFacts | None = None
        """Compares the first records with it."""
        self._is_planned = False
        """Whether a change was announced since the start."""
        self._attempt = int(earlier.attempt[-1]) if len(earlier) else 0
        self._last_clock: float | None = None
        self._last_step = first_step - 1
        self._facts = RunFacts.from_manifest(manifest)
        self.history = RunHistory()
        """The attempts of the run, for the verdicts on its checkpoints."""
        self.history.update(earlier)
        self._judge = Judge(config, plugins=True)
        self._judge_state = JudgeState(run, self._judge)
        self._num_failures = 0
        self._report_failures()
        self._shield = shield or Shield("judge", "records are not judged any more")
        self._pending: list[Record] = []
        self._pending_events: list[Event] = []
        """What the judge has not seen yet."""
        self._last_judged = 0.0
        self._recent: deque[Record] = deque(maxlen=RECENT_RECORDS)
        self._explaining: deque[Event] = deque(maxlen=RECENT_RECORDS)
        self._batches = batches or BatchMemory(config.live, run.incidents)
        self._clip_detector = ClipDetector()
        self._has_advised = False
        self._num_unrecorded = self._num_elsewhere = 0
        self._has_unrecorded = False
        self._telemetry_loss = math.nan
        """The loss of the last step with telemetry."""
        self.resumed_at: int | None = None
        """The first step, if the run was resumed."""
        self.num_records = self.num_discarded = self.num_nonfinite = 0
        self.journal = JournalWriter(run)
        self._health = JournalHealth(self.journal)
        self._next_tick = int(earlier.tick[-1]) + 1 if len(earlier) else 0
        try:
            run.write_manifest(manifest)
            announce_run(run)
            self._incident_log = IncidentLog(on_incident)
            if len(earlier):
                # Only a judge that knows the past of the run can tell whether it continues it.
                self._judge_state.resume(earlier)
                self._attempt += int(first_step <= earlier.step[-1])
                self.event("resume", first_step, {"last_step": int(earlier.step[-1])})
                self.resumed_at = first_step
            self._shipping = ShipProcess(run, config.ship)
        except BaseException:
            self.journal.close("could not start", seconds=1.0)
            raise
        self.on_change: Callable[[Incident], None] = lambda incident: None
        """Is called when an incident opens, changes or closes."""

    @property
    def num_incidents(self) -> int:
        """How many incidents were found in the records that are judged so far."""
        return len(self._judge.incidents)

    @property
    def recent(self) -> Sequence[Record]:
        """The last records, oldest first."""
        return list(self._recent)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        self._judge_pending()
        return self._judge.incidents

    @property
    def attempt(self) -> int:
        return self._attempt

    def number_of(self, note: StepNote) -> int:
        """The number of a step, with those counted that only other ranks have recorded."""
        return note.step + self._num_elsewhere

    def record(self, note: StepNote, numbers: Mapping[str, float]) -> None:
        """Write and judge the record of one step."""
        self._num_unrecorded = 0
        step = self._last_step = self.number_of(note)
        self._num_elsewhere += int(not note.is_recorded_here)
        values = dict(numbers)
        norm = values.get(signals.GRAD_NORM)
        if note.norm_is_after_clip and norm is not None and self._clip_detector.is_clipped(norm):
            values[signals.CLIPPED_GRAD_NORM] = values.pop(signals.GRAD_NORM)
            self.journal.quality(signals.CLIPPED_GRAD_NORM, Quality.POST_CLIP)
            if self._clip_detector.num_clipped >= CLIPPED_BEFORE_ADVICE and not self._has_advised:
                self._has_advised = True
                log.warning("trimtab: %s", POST_CLIP_ADVICE)
        # What the user has measured stands: `max_attention_logit` may be both.
        found = {**values, **note.user_signals(), signals.CLOCK: note.clock, **note.signals}
        found |= self._derive(found)
        found |= self._token_losses(note, found)
        is_audited = self.resume is not None and self._audit(step, found)
        tick = self.journal.append(step, found, self._attempt, note.data_position)
        self._next_tick = tick + 1
        record = Record(
            step=step,
            tick=tick,
            signals=found,
            attempt=self._attempt,
            data_position=note.data_position,
        )
        if note.token_rows or note.row_losses:
            self._batches.add(tick, step, note)
        self.num_records += 1
        self.num_discarded += int(found.get(signals.DISCARDED) == 1.0)
        heads = (found.get(name, 0.0) for name in (signals.LOSS, signals.GRAD_NORM))
        self.num_nonfinite += int(not all(map(math.isfinite, heads)))
        self._recent.append(record)
        self._health.check(step)
        self._pending.append(record)
        now = time.monotonic()
        is_due = now - self._last_judged >= JUDGE_SECONDS or len(self._pending) >= JUDGE_RECORDS
        if is_due or is_audited:
            self._last_judged = now
            self._judge_pending()
            self._shipping.check()

    def _token_losses(self, note: StepNote, found: Mapping[str, float]) -> dict[str, float]:
        """Return the histogram of token losses: with telemetry, and where the loss is higher."""
        if not note.row_losses:
            return {}
        loss = found.get(signals.LOSS, math.nan)
        if not note.has_telemetry and not loss > HIGHER * self._telemetry_loss:
            return {}
        if note.has_telemetry:
            self._telemetry_loss = loss
        counts = [copy.read()[-NUM_BINS:] for copy in note.row_losses]
        return shares([sum(column) for column in zip(*counts, strict=True)])

    def unrecorded(self, note: StepNote) -> None:
        """An update that no rank has recorded: the first is an event, the 20th a warning."""
        self._num_unrecorded += 1
        if not self._has_unrecorded:
            self._has_unrecorded = True
            self.event("unobserved step", note.step, {})
        if self._num_unrecorded == MAX_UNRECORDED:
            log.warning(
                "trimtab: %d steps in a row without a record; call guard.record(loss=...) before "
                "every optimizer.step()",
                MAX_UNRECORDED,
            )

    def event(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        """Journal something that happened, and let the judge know of it."""
        self.journal.add_event(kind, step, facts)
        self._is_planned = self._is_planned or kind == "planned change"
        event = Event(kind=kind, tick=self._next_tick, step=step, facts=dict(facts))
        self._pending_events.append(event)
        if kind in EXPLAINING_EVENTS:
            self._explaining.append(event)

    def close(self, how: str) -> None:
        """Judge what is open, end the journal, write the post-mortems."""
        self._judge_pending()
        if not self._shield.is_down:
            with self._shield.guarding("end"):
                for change in self._judge.finish().changes:
                    self._report(change)
        self.journal.close(how)
        self._health.check(self._last_step)
        self._incident_log.close()
        with self._shield.guarding("post-mortems"):
            self._write_postmortems()
        self._shipping.close()

    def summary(self) -> str:
        """Return the run in one line."""
        words = [f"{self.num_records} steps recorded", counted(len(self.incidents), "incident")]
        if self.num_discarded:
            words.append(f"{counted(self.num_discarded, 'step')} discarded")
        if self.journal.dropped:
            words.append(f"{self.journal.dropped} records LOST by the journal")
        return f"{', '.join(words)}; {self.run.home}"

    def _derive(self, found: Mapping[str, float]) -> dict[str, float]:
        """What follows from the numbers of a step and the clock of the one before."""
        derived = {}
        if self._last_clock is not None and found[signals.CLOCK] > self._last_clock:
            seconds = found[signals.CLOCK] - self._last_clock
            derived[signals.STEP_SECONDS] = seconds
            if signals.TOKENS in found:
                derived[signals.TOKENS_PER_SECOND] = found[signals.TOKENS] / seconds
        self._last_clock = found[signals.CLOCK]
        if signals.UPDATE_NORM in found and found.get(signals.LR, 0.0) > 0:
            derived[signals.UPDATE_PER_LR] = found[signals.UPDATE_NORM] / found[signals.LR]
        return derived

    def _judge_pending(self) -> None:
        """Judge the records that wait; how a run is cut never changes the judgement."""
        records, self._pending = self._pending, []
        if not records or self._shield.is_down:
            return
        last = records[-1].tick
        events = [event for event in self._pending_events if event.tick <= last]
        self._pending_events = [event for event in self._pending_events if event.tick > last]
        with self._shield.guarding("record"):
            self._judge_block(Block.from_records(records, events))

    def _judge_block(self, block: Block) -> None:
        self.history.update(block)
        for change in self._judge.update(block).changes:
            self._report(change)
        self._judge_state.add(len(block))
        self._report_failures()

    def _audit(self, step: int, found: dict[str, float]) -> bool:
        """Name what a resume has not restored, in the record of a first step; whether it did."""
        resume = self.resume
        if resume is None:
            return False
        has_found = report_audit(resume, self.journal, step, found, is_planned=self._is_planned)
        if resume.is_done or resume.shield.is_down:
            self.resume = None
        return has_found

    def _report_failures(self) -> None:
        """Log each detector that has failed since the last call and was left out."""
        failures = self._judge.failures
        for failure in failures[self._num_failures :]:
            log.warning("trimtab: %s", failure)
        self._num_failures = len(failures)

    def _report(self, change: IncidentChange) -> None:
        incident = change.incident
        explained = self.explain(incident)
        self.journal.event(
            "incident",
            incident.last.step,
            transition=change.transition,
            number=incident.number,
            onset=incident.onset.step,
            peak_loss=incident.peak.loss if incident.peak.loss is not None else math.nan,
            incident_class=incident.incident_class,
            symptoms=incident.symptoms,
            **explanation_facts(incident, explained),
        )
        self._batches.freeze(incident)
        self._incident_log.report(change, explained)
        self.on_change(incident)

    def explain(self, incident: Incident) -> Diagnosis | None:
        """What the last records say about an incident; None if they are too few."""
        known = Block.from_records(tuple(self._recent), self._explaining)
        try:
            return self._judge.explain(incident, known, self._facts)
        except Exception:  # it began before the records that are kept
            return None

    def _write_postmortems(self) -> None:
        if not self._judge.incidents:
            return
        run = read_journal(self.run, find_damage=False)
        run = dataclasses.replace(run, notes=(*run.notes, *self._health.remarks()))
        batches = self._batches.reports(self._judge.incidents)
        report = build_report(self._judge, run, name=str(self.run.root), batches=batches)
        write_incidents(report, self.run.incidents)


def _past(earlier: Block, first_step: int) -> JournalPast | None:
    """What the journal says; None if it is empty, or so odd that it cannot be compared with."""
    try:
        return JournalPast.of(earlier, first_step) if len(earlier) else None
    except Exception:
        log.exception("trimtab: the journal cannot be read for the resume audit; it is left out")
        return None
