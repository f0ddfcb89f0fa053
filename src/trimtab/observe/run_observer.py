"""RunObserver: one run, judged as its journal grows.

    poll            new records -> judge -> for each change: explain it, write its files, say it
    note_standing   the run is over: classify what is open, explain and write everything

What is said about a change follows from the records up to it, and what is written at the end from
the whole run, so it does not matter when an observer looked, or how often it was started again.
"""

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from trimtab.core.block import Block, Event
from trimtab.core.errors import JournalError
from trimtab.core.incidents import (
    Incident,
    IncidentChange,
    IncidentTransition,
    Transition,
    transitions_of,
)
from trimtab.core.sink import RUN_STATUS, RunStatus
from trimtab.diagnosis import build_report, run_config
from trimtab.explain.diagnosis import Diagnosis
from trimtab.journal import (
    PIECE_RECORDS,
    Follower,
    JournalRun,
    RunDirectory,
    RunTotals,
    read_journal,
)
from trimtab.journal.checkpoints.index import CheckpointEntry, CheckpointIndex, write_verdicts
from trimtab.journal.files import replace_file
from trimtab.journal.news import INCIDENT, REPORT_WRITTEN, read_news, transitions_in
from trimtab.journal.notes import dismissals, read_notes
from trimtab.judge import Judge
from trimtab.observe.checkpoint_verdicts import RunHistory, judge_checkpoint
from trimtab.observe.judge_state import JudgeState
from trimtab.observe.liveness import Standing
from trimtab.observe.news_writer import NewsWriter, NoNews
from trimtab.observe.wording import VERDICT, describe, dismissal_text, facts_of, level_of
from trimtab.report.incident_files import MAX_INCIDENTS, write_incident, write_incidents
from trimtab.report.run_report import RunReport

log = logging.getLogger("trimtab")

VERDICT_FILE = "verdict.json"
"""The report of the run as its observer saw it last, as `trimtab diagnose RUN --json` prints it."""

VERDICT_SECONDS = 30.0
"""Longest time from one writing of the verdicts of checkpoints to the next, while nothing but the
count of healthy steps changes. Chosen: far less than from one checkpoint to the next."""

LEASE_SECONDS = 2.0
"""From one attempt to take over the lease to the next."""


class Listener:
    """Hears what is new about a run; this one, of an observer that writes files, hears nothing."""

    def line(self, level: int, text: str) -> None:
        """Hear a line for the log of the run."""

    def incident(self, incident: Incident, *, is_new: bool) -> None:
        """Hear of an incident; one that is not new was found by an earlier observer."""


class RunObserver:
    """Follows one run. Writes if no other observer does; else it judges for its listener alone."""

    def __init__(
        self, run: RunDirectory, listener: Listener | None = None, *, writes: bool = True
    ) -> None:
        self.run = run
        self.totals = RunTotals()
        """What the records add up to."""
        self._listener = listener or Listener()
        self._wants_lease = writes
        self._next_lease = 0.0
        self._news: NewsWriter | NoNews = NoNews()
        self._standing = Standing(status=RunStatus.RUNNING, how="")
        self._is_anew = False
        """Whether the journal is to be read again from its first record."""
        self._begin()

    def _begin_anew(self) -> None:
        """Judge the whole journal again: the saved state cannot be used."""
        self._follower.close()
        self.totals = RunTotals()
        self._begin(anew=True)
        self._is_anew = True

    def _begin(self, *, anew: bool = False) -> None:
        """Begin at the first record; unless `anew`, with what an earlier observer knew."""
        self._follower = Follower(self.run)
        self._judge = Judge(run_config(self.run), plugins=True)
        self._saved = JudgeState(self.run)
        self._history = RunHistory()
        self._waiting: list[Event] = []
        """Events whose record has not come yet."""
        self._last = Block.empty()
        self._finished_from: dict[str, Any] | None = None
        """The judge's state before `finish`: the run may be resumed."""
        self._num_failures = self._notes_size = 0
        self._verdicts: list[Any] = []
        self._next_verdicts = 0.0
        self._is_resumed = not anew and self._saved.load(self._judge)
        self._transitions: list[IncidentTransition] = []
        self._num_certain = 0
        """Transitions that do not come from `finish`."""
        if self._is_resumed:
            last = self._saved.last_tick
            said = transitions_in(read_news(self.run))
            self._transitions = [one for one in said if one.tick <= last]
            for incident in self._judge.incidents:
                self._listener.incident(incident, is_new=False)

    @property
    def ended(self) -> str | None:
        """How the journal ended; None while it is written, or if its writer was killed."""
        return None if self._follower.has_more else self._follower.ended

    @property
    def is_writer(self) -> bool:
        """Whether this observer holds the lease of the run."""
        return isinstance(self._news, NewsWriter)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Every incident so far, as it now stands."""
        return self._judge.incidents

    def poll(self) -> bool:
        """Judge everything that is new; return whether anything was."""
        self._take_lease()
        found = False
        while True:
            block = self._follower.poll(PIECE_RECORDS)
            found = found or bool(len(block) or block.events)
            self._add(block)
            if self._saved.is_waiting and not self._follower.has_more:
                self._begin_anew()  # the journal has lost what was judged
            if not self._follower.has_more and not self._is_anew:
                break
            self._is_anew = False
        if found:
            self.judge_checkpoints()
        self._hear_notes()
        return found

    def judge_checkpoints(self, *, now: bool = False) -> None:
        """Write the verdicts of the run's checkpoints: where one changed, and now and then."""
        if not self.is_writer:
            return
        try:
            index = CheckpointIndex(self.run.home)
        except OSError:
            return
        if not index.entries and not now:
            return
        entries = self.verdicts(index.entries)
        verdicts = [(entry.folder, entry.verdict, entry.in_doubt) for entry in entries]
        clock = time.monotonic()
        if now or verdicts != self._verdicts or clock >= self._next_verdicts:
            self._verdicts, self._next_verdicts = verdicts, clock + VERDICT_SECONDS
            with contextlib.suppress(OSError):  # a full disk; the next writing may work
                write_verdicts(self.run.home, self.totals.last_tick, entries)

    def verdicts(self, entries: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
        """Return checkpoints of the run with the verdicts that follow from what was judged."""
        incidents = self._judge.incidents
        return [judge_checkpoint(entry, self._history, incidents) for entry in entries]

    def note_standing(self, standing: Standing) -> None:
        """Say how the run stands, if that has changed; write everything when it is over."""
        has_changed, self._standing = standing != self._standing, standing
        facts = {"status": standing.status, "how": standing.how}
        if standing.status is RunStatus.RUNNING:
            if self._news.status != RunStatus.RUNNING:  # an earlier observer may have said so
                self._say(RUN_STATUS, facts)
        elif has_changed:
            self.finish()
            self._say(RUN_STATUS, facts)
            self.write_report()
            self._say(REPORT_WRITTEN, {"bytes": journal_size(self.run)})

    def _say(self, kind: str, facts: dict[str, Any]) -> None:
        """Say something about the whole run, at the record that comes next."""
        tick, step = self.totals.last_tick + 1, max(self.totals.last_step, 0)
        self._news.say(Event(kind=kind, tick=tick, step=step, facts=facts))

    def _hear_notes(self) -> None:
        """Say each dismissal among the notes that people have added since the last call."""
        try:
            size = self.run.notes.stat().st_size
        except OSError:
            return
        if size == self._notes_size:
            return
        self._notes_size = size
        numbers = {incident.number for incident in self.incidents}
        is_new = False
        for event in dismissals(read_notes(self.run)):
            if event.facts["number"] in numbers and self._news.say(event):
                is_new = True
                self._listener.line(logging.INFO, dismissal_text(event))
        if is_new and self._standing.status is not RunStatus.RUNNING:
            self.write_report()

    def finish(self) -> None:
        """Classify what is open, as far as the records allow."""
        if self._finished_from is None:
            if self.is_writer:
                self._saved.save(self._judge, self._last, now=True)
            self._finished_from = self._judge.state_dict()
            self._num_certain = len(self._transitions)
            self._report(self._judge.finish().changes)

    def write_report(self) -> None:
        """Explain every incident from the whole run, and write all files."""
        if not self.is_writer:
            return
        report = self.report()
        for diagnosis in report.incidents:
            self._say_again(diagnosis)
        content = json.dumps(report.to_dict(), indent=1, allow_nan=False)
        try:
            write_incidents(report, self.run.incidents)
            replace_file(self.run.home / VERDICT_FILE, content + "\n")
        except OSError as error:
            self._listener.line(logging.WARNING, f"the report could not be written: {error}")
        self.judge_checkpoints(now=True)

    def report(self) -> RunReport:
        return build_report(
            self._judge,
            self._read(),
            name=str(self.run.root),
            transitions=self._transitions,
        )

    def close(self) -> None:
        self._follower.close()
        self._news.close()

    def _take_lease(self) -> None:
        clock = time.monotonic()
        if self.is_writer or not self._wants_lease or clock < self._next_lease:
            return
        self._next_lease = clock + LEASE_SECONDS
        # JournalError: a different observer has it. OSError: nothing can be written here.
        with contextlib.suppress(JournalError, OSError):
            self._news = NewsWriter(self.run)

    def _add(self, block: Block) -> None:
        """Judge the next records; events wait for their record, as in a log that is complete."""
        self.totals.add(block)
        self._history.update(block)
        unjudged = self._saved.unjudged(block)
        if unjudged is None:  # the saved state is of a different journal
            self._begin_anew()
            return
        self._waiting += unjudged.events
        if not len(unjudged):
            return
        if self._finished_from is not None:  # the run goes on
            self._judge.load_state_dict(self._finished_from)
            self._finished_from = None
            del self._transitions[self._num_certain :]
        last = int(unjudged.tick[-1])
        events = tuple(event for event in self._waiting if event.tick <= last)
        self._waiting = [event for event in self._waiting if event.tick > last]
        try:
            judgement = self._judge.update(dataclasses.replace(unjudged, events=events))
        except Exception:
            if not self._is_resumed:
                raise
            self._begin_anew()  # a damaged state may load and fail later
            return
        self._report(judgement.changes)
        self._last = unjudged[len(unjudged) - 1 :]
        if self.is_writer:
            self._saved.save(self._judge, unjudged)
        self._report_failures()

    def _report(self, changes: Iterable[IncidentChange]) -> None:
        """Explain each change from the records up to it, write its files, and say it."""
        changes = tuple(changes)
        self._transitions = transitions_of(changes, self._transitions)
        if not self.is_writer and type(self._listener) is Listener:
            return  # nobody hears it
        run: JournalRun | None = None
        for change in changes:
            run = run or self._read()
            incident = change.incident
            report = build_report(
                self._judge,
                _until(run, change.tick),
                name=str(self.run.root),
                incidents=[incident],
            )
            diagnosis = report.incidents[0]
            if self.is_writer and incident.number <= MAX_INCIDENTS:
                with contextlib.suppress(OSError):  # the end writes it again
                    write_incident(self.run.incidents, diagnosis, report)
            self._tell(change, diagnosis)

    def _say_again(self, diagnosis: Diagnosis) -> None:
        """Say how an incident stands in the report, where that is not what was said last."""
        incident = diagnosis.incident
        is_over = incident.end is not None
        transition = Transition.CLOSED if is_over else Transition.CLASSIFIED
        change = IncidentChange(
            transition=transition, tick=self.totals.last_tick, incident=incident
        )
        facts, said = facts_of(change, diagnosis), self._news.facts.get(incident.number, {})
        if not diagnosis.dismissed and any(said.get(name) != facts[name] for name in VERDICT):
            self._tell(change, diagnosis)

    def _tell(self, change: IncidentChange, diagnosis: Diagnosis) -> None:
        """Say a change of an incident, unless it was said before."""
        incident = change.incident
        event = Event(
            kind=INCIDENT,
            tick=change.tick + 1,
            step=incident.last.step,
            facts=facts_of(change, diagnosis),
        )
        is_new = self._news.say(event)
        self._listener.incident(incident, is_new=is_new)
        level = level_of(change, diagnosis)
        if is_new and level is not None:
            self._listener.line(level, describe(change, diagnosis))

    def _report_failures(self) -> None:
        """Say each detector that has failed since the last call and was left out."""
        failures = self._judge.failures
        for failure in failures[self._num_failures :]:
            self._listener.line(logging.WARNING, failure)
        self._num_failures = len(failures)

    def _read(self) -> JournalRun:
        return read_journal(self.run, find_damage=False)


def journal_size(run: RunDirectory) -> int:
    """Return the bytes of the journal and the notes; each file counts as one more."""
    try:
        files = [*run.journal.iterdir(), *run.home.glob(run.notes.name)]
        return sum(1 + file.lstat().st_size for file in files)
    except OSError:  # a file was sealed meanwhile, or there is no journal yet
        return 0


def _until(run: JournalRun, tick: int) -> JournalRun:
    """Return a run as it was when the record of a tick was its last."""
    return dataclasses.replace(run, block=run.block[: run.block.row_of(tick + 1)])


def judge_from_journal(
    run: RunDirectory, entries: Sequence[CheckpointEntry]
) -> list[CheckpointEntry]:
    """Return checkpoints with the verdicts that follow from the journal; writes nothing."""
    if not run.exists():
        return list(entries)
    observer = RunObserver(run, writes=False)
    observer.poll()
    observer.finish()
    verdicts = observer.verdicts(entries)
    observer.close()
    return verdicts
