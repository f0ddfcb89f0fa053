"""OpenIncident: what is known so far about one incident."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.core.findings import NOT_FINITE, Finding
from trimtab.core.incidents import (
    Incident,
    IncidentChange,
    IncidentClass,
    Moment,
    Outlook,
    Transition,
)
from trimtab.core.state import Stateful
from trimtab.explain.incidents.course import Course

MAX_RECORDS = 64
"""Records in which the loss must have fallen clearly for a restart to be recognised later."""

CLEAR_FALL = 0.8
"""A loss at this share of the first one has fallen clearly."""

LIKENESS = 0.1
"""The share by which losses of a restart may differ from those of the start. Chosen: the restarts
of a public run differ from its start by 1 to 2 %."""


class RunStart(Stateful):
    """The first loss of a run, and when it had fallen clearly."""

    def __init__(self) -> None:
        self.is_known = False
        """Whether nothing more is to be learned."""
        self.records = 0
        """Records from the first loss to the one that had fallen clearly; 0 if it did not."""
        self._num_seen = 0
        self._first = self._fallen = math.nan

    def observe(self, moment: Moment) -> None:
        """Add the next loss of the run."""
        if self.is_known or moment.loss is None or not math.isfinite(moment.loss):
            return
        if not self._num_seen:
            self._first = moment.loss
        elif 0 < moment.loss <= CLEAR_FALL * self._first:
            self.records, self._fallen = self._num_seen, moment.loss
        self._num_seen += 1
        self.is_known = self.records > 0 or self._num_seen > MAX_RECORDS

    def is_repeated_by(self, losses: Sequence[float]) -> bool:
        """Return whether the losses from a peak on, one more than `records`, are like the first."""
        if not self.records or len(losses) <= self.records:
            return False
        return _is_like(losses[0], self._first) and _is_like(losses[self.records], self._fallen)


def _is_like(loss: float, known: float) -> bool:
    return abs(loss - known) <= LIKENESS * abs(known)


@dataclass(slots=True, kw_only=True)
class OpenIncident:
    """The working state of an incident; `snapshot` is its public form."""

    number: int
    onset: Moment
    peak: Moment
    last: Moment
    course: Course
    findings: list[Finding] = field(default_factory=list)
    num_findings: int = 0
    is_loud: bool = False
    """Whether an alarm was about the loss itself."""
    waiting: int = 0
    """Records since the incident was opened or reopened."""
    calm: int = 0
    """Records since the latest alarm."""
    missing: int = 0
    """Records without a loss since the latest one that had one."""
    num_reopened: int = 0
    incident_class: IncidentClass | None = None
    outlook: Outlook | None = None
    back_in: int | None = None
    new_level: float | None = None
    is_surrogate: bool = False
    has_direction: bool | None = None
    start_loss: float | None = None
    started_again: bool = False
    was_kept_out: bool = False
    has_finite_state: bool = True
    """Whether the norms of weights and optimizer were finite when they were last recorded."""
    end: Moment | None = None
    since_peak: list[float] = field(default_factory=list)
    """The finite losses from the peak on, as many as a restart is recognised by."""

    @classmethod
    def begin(
        cls, number: int, onset: Moment, course: Course, alarms: Sequence[Finding], *, is_loud: bool
    ) -> "OpenIncident":
        opened = cls(number=number, onset=onset, peak=onset, last=onset, course=course)
        opened.join(alarms, is_loud=is_loud)
        if not opened.is_loud:
            opened.incident_class = IncidentClass.SILENT
        return opened

    def join(self, alarms: Sequence[Finding], *, is_loud: bool) -> bool:
        """Add further alarms; return whether one of them has a symptom not seen here before."""
        if not alarms:
            return False
        self.num_findings += len(alarms)
        if is_only_nonfinite(alarms):
            self.course.finite_records = 0  # the next losses show what came of it
        else:
            self.calm, self.course.returned = 0, None
        known = {finding.symptom for finding in self.findings}
        new = [alarm for alarm in alarms if alarm.symptom not in known]
        self.findings += new
        self.is_loud = self.is_loud or is_loud
        if self.is_loud and self.is_silent:
            self.incident_class = None  # no longer silent: the loss decides
        return bool(new)

    def reopen(
        self, alarms: Sequence[Finding], kept: IncidentClass | None, *, is_loud: bool
    ) -> None:
        """Continue an incident that had been closed, with the class that it keeps."""
        self.end, self.new_level, self.outlook, self.back_in = None, None, None, None
        self.waiting, self.missing = 0, 0
        self.num_reopened += 1
        self.incident_class = kept
        self.join(alarms, is_loud=is_loud)

    def observe(self, moment: Moment, *, is_waiting: bool = True) -> None:
        """Add a record that has a loss; `is_waiting` unless it came before the alarm."""
        self.calm += is_waiting
        self.waiting += is_waiting
        self.course.observe(moment)
        self.was_kept_out = self.was_kept_out and self.course.is_finite
        self.note(moment)
        if moment.loss is not None and len(self.since_peak) <= MAX_RECORDS:
            self.since_peak.append(moment.loss)

    def note(self, moment: Moment) -> None:
        """Note a record that has a loss, which says nothing of the weights if it was kept out."""
        self.last = moment
        self.missing = 0
        if _badness(moment) > _badness(self.peak):
            self.peak = moment
            self.since_peak = []

    @property
    def is_silent(self) -> bool:
        """Whether the loss has not been affected so far."""
        return self.incident_class is IncidentClass.SILENT

    @property
    def records(self) -> int:
        """Records from the onset to the end, or to the latest one."""
        if self.end is not None and self.course.returned is not None:
            return self.course.returned_after  # the later ones only confirmed it
        return self.course.records

    @property
    def baseline_mean(self) -> float | None:
        return self.course.trend.level if self.course.trend else None

    @property
    def baseline_deviation(self) -> float | None:
        return self.course.trend.scale if self.course.trend else None

    def change(self, transition: Transition, tick: int) -> IncidentChange:
        return IncidentChange(transition=transition, tick=tick, incident=self.snapshot())

    def snapshot(self) -> Incident:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(Incident)}
        return Incident(**{**fields, "findings": tuple(self.findings)})

    def state_dict(self) -> dict[str, Any]:
        return {
            "incident": dataclasses.asdict(self.snapshot()),
            "course": self.course.state_dict(),
            **{name: getattr(self, name) for name in _PRIVATE},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "OpenIncident":
        """Restore what `state_dict` returned."""
        incident = Incident.from_state(state["incident"])
        shared = {f.name for f in dataclasses.fields(cls)} & _PUBLIC
        return cls(
            **{name: getattr(incident, name) for name in shared - {"findings"}},
            findings=list(incident.findings),
            course=Course.from_state(state["course"]),
            **{name: state[name] for name in _PRIVATE},
        )


_PUBLIC = {f.name for f in dataclasses.fields(Incident)}
_PRIVATE = tuple(
    f.name for f in dataclasses.fields(OpenIncident) if f.name not in {*_PUBLIC, "course"}
)
"""What the public form does not have: saved as it is, so that a new field cannot be forgotten."""


def is_only_nonfinite(alarms: Sequence[Finding]) -> bool:
    """Return whether the alarms of a record say no more than that its step was not finite."""
    return NOT_FINITE.issuperset(alarm.symptom for alarm in alarms)


def _badness(moment: Moment) -> float:
    """Return a number that orders losses from good to bad: non-finite is worse than any finite."""
    if moment.loss is None:
        return -math.inf
    return moment.loss if math.isfinite(moment.loss) else math.inf
