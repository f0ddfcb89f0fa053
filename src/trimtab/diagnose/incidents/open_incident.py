"""Episode: what is known so far about one open incident, and how trimtab's own rules class it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import (
    Incident,
    IncidentChange,
    IncidentClass,
    Moment,
    Outlook,
    Transition,
)
from trimtab.detect.tools.expectation import median
from trimtab.diagnose.incidents.course import BAD_RECORDS, NEAR_RECORDS, Course
from trimtab.diagnose.incidents.outlook import OUTLOOK_RECORDS, foresee
from trimtab.diagnose.incidents.trend import trend_of

RECOVERY_STEPS, RECOVERY_RECORDS = 100, 2
"""A spike that is back within so many steps, or records of a thinned log, recovered; one that takes
longer lingers. Source: the rule by which the public runs were labelled."""

SETTLED = 4
"""After that many times the recovery time the level is taken as the new normal, and told: an
incident cannot alarm for ever."""

PACE_RECORDS = 17
"""Records before the onset that say how many steps lie between two."""

THINNED = 2.0
"""Steps from record to record from which on a log is thinned out."""

REOPEN_RECORDS = 16
"""An alarm so soon after an incident closed reopens it; a quarter of it in a thinned log."""

MOST_REOPENED = 8
"""After so many times the next alarm is a new incident: no incident can be reopened for ever."""

HARD_BATCH_RECORDS = 8
"""An incident with a single high loss that is back so soon was a hard batch..."""

STRONG = frozenset({Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE, Symptom.NONFINITE_GRAD_NORM})
"""... unless one of these says that the batch was more than hard: it may have moved the weights."""

LOUD = frozenset(
    {
        Symptom.LOSS_SPIKE,
        Symptom.LEVEL_SHIFT,
        Symptom.NONFINITE_LOSS,
        Symptom.RESUME_GAP,
    }
)
"""What the loss itself shows. An incident with none of these is silent until the loss moves."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """The working state behind an incident; `snapshot` is what others see."""

    number: int
    onset: Moment
    peak: Moment
    last: Moment
    course: Course
    stride: float
    """Steps from record to record before the onset."""
    findings: list[Finding] = field(default_factory=list)
    num_findings: int = 0
    waiting: int = 0
    """Records since the incident was opened or reopened."""
    calm: int = 0
    """Records since the latest alarm."""
    blind: int = 0
    """Records without a loss since the latest that had one."""
    num_reopened: int = 0
    incident_class: IncidentClass | None = None
    outlook: Outlook | None = None
    new_level: float | None = None
    end: Moment | None = None

    @classmethod
    def begin(
        cls,
        number: int,
        onset: Moment,
        before: Sequence[Moment],
        alarms: Sequence[Finding],
    ) -> "Episode":
        """Open an incident on these alarms, with the records before its onset as baseline."""
        moves = [after.step - m.step for m, after in pairwise(before[-PACE_RECORDS:])]
        stride = max(median(moves), 1.0) if moves else 1.0
        is_thinned = stride >= THINNED
        course = Course(
            trend=trend_of(before, is_thinned=is_thinned),
            is_thinned=is_thinned,
            near_records=NEAR_RECORDS if _recovery_records(stride) >= 4 * NEAR_RECORDS else 1,
        )
        opened = cls(
            number=number, onset=onset, peak=onset, last=onset, course=course, stride=stride
        )
        opened.join(alarms)
        if not opened.is_loud:
            opened.incident_class = IncidentClass.SILENT
        return opened

    def join(self, alarms: Sequence[Finding]) -> bool:
        """Take further alarms; whether one of them is of a kind not seen here before."""
        if not alarms:
            return False
        self.num_findings += len(alarms)
        self.calm, self.course.returned = 0, None
        known = {finding.symptom for finding in self.findings}
        new = [alarm for alarm in alarms if alarm.symptom not in known]
        self.findings += new
        if self.is_loud and self.is_silent:
            self.incident_class = None  # no longer silent: the loss will say
        return bool(new)

    def reopen(self, alarms: Sequence[Finding]) -> None:
        """Go on with an incident that had been closed."""
        self.end, self.new_level, self.outlook = None, None, None
        self.waiting, self.blind = 0, 0
        self.num_reopened += 1
        if not self.is_silent:
            self.incident_class = None
        self.join(alarms)

    def see(self, moment: Moment, *, is_waiting: bool = True) -> None:
        """Take a record that has a loss."""
        self.last = moment
        self.blind = 0
        self.calm += is_waiting
        self.waiting += is_waiting
        self.course.see(moment)
        if self.is_silent:
            self._listen(moment)
        if _badness(moment) > _badness(self.peak):
            self.peak = moment

    @property
    def is_loud(self) -> bool:
        """Whether an alarm was about the loss itself."""
        return any(finding.symptom in LOUD for finding in self.findings)

    @property
    def is_silent(self) -> bool:
        """Whether the loss has taken no part in it so far."""
        return self.incident_class is IncidentClass.SILENT

    @property
    def stays_away(self) -> bool:
        """Whether its class is that of a loss that did not come back."""
        return self.incident_class in (IncidentClass.LINGERING, IncidentClass.DIVERGENT)

    @property
    def records(self) -> int:
        """Records from the onset on."""
        return self.course.records

    @property
    def recovery_records(self) -> int:
        """Records that a recovery may take."""
        return _recovery_records(self.stride)

    @property
    def most_records(self) -> int:
        """Records after the alarm at which it is over, whatever the loss does, if it is finite."""
        return SETTLED * self.recovery_records

    @property
    def baseline_mean(self) -> float | None:
        """Usual loss before the onset."""
        return self.course.trend.level if self.course.trend else None

    @property
    def baseline_deviation(self) -> float | None:
        """Usual deviation of the loss before the onset."""
        return self.course.trend.scale if self.course.trend else None

    def is_due(self) -> bool:
        """Whether it needs a class now: the time to recover is over, or a NaN has come to stay.

        One that stays away is looked at again whenever as long again is over.
        """
        if self.incident_class is None:
            is_late = self.waiting > self.recovery_records and self.course.returned is None
            return is_late or self.course.bad_records >= BAD_RECORDS
        return self.stays_away and self.waiting % self.recovery_records == 1

    def is_settled(self) -> bool:
        """Whether it has lasted as long as an incident may."""
        return self.course.is_finite and self.waiting > self.most_records

    def may_reopen(self, since_closed: int) -> bool:
        """Whether an alarm so many records after the end belongs to it still."""
        limit = REOPEN_RECORDS // 4 if self.course.is_thinned else REOPEN_RECORDS
        return since_closed <= limit and self.num_reopened < MOST_REOPENED

    def is_over(self) -> bool:
        """Whether the loss is back; of a silent one, whether the loss did not follow in time."""
        if not self.is_silent:
            return self.course.is_back(self.waiting)
        is_known = self.course.trend is not None
        return self.course.is_finite and (self.calm >= self.recovery_records or not is_known)

    def is_hard_batch(self) -> bool:
        """Whether one high loss was followed by two usual ones."""
        if self.waiting != 3 or self.records != 3 or self.course.is_thinned:
            return False
        only_loss = all(finding.symptom is Symptom.LOSS_SPIKE for finding in self.findings)
        was_first = self.onset.tick == self.peak.tick and len(self.course.excess) == 3
        return only_loss and was_first and self.course.num_high <= 1

    def class_if_over(self) -> IncidentClass:
        """The class of an incident whose loss is back."""
        kept = self._kept_class()
        if kept is not None:
            return kept
        after = self.course.returned_after
        is_single = self.course.num_high == 1 and not self.course.is_thinned
        is_calm = not any(finding.symptom in STRONG for finding in self.findings)
        if is_single and is_calm and after <= HARD_BATCH_RECORDS:
            return IncidentClass.HARD_BATCH
        in_time = after <= self.recovery_records + self.course.near_records
        return IncidentClass.RECOVERABLE if in_time else IncidentClass.LINGERING

    def class_if_not_back(self) -> IncidentClass:
        """The class of an incident whose loss did not come back in time."""
        return self._kept_class() or (
            IncidentClass.DIVERGENT if self.course.runs_away() else IncidentClass.LINGERING
        )

    def class_at_the_end(self) -> IncidentClass | None:
        """The class when the log stops before the rule's time; None if nothing can be said."""
        if self.stays_away:
            return self.class_if_not_back()
        if self.incident_class is not None:
            return self._kept_class() or self.incident_class
        if self.course.runs_away():
            return IncidentClass.DIVERGENT
        if self.course.returned is not None:
            return self.class_if_over()
        return self.outlook.incident_class if self.outlook else None

    def foresee(self) -> bool:
        """Look ahead at the set times; whether there is a new outlook."""
        if self.waiting not in OUTLOOK_RECORDS:
            return False
        known = self.incident_class or self._kept_class()
        self.outlook = foresee(self.course, self.waiting, known)
        return True

    def change(self, transition: Transition, tick: int) -> IncidentChange:
        """A transition with the incident as it stands."""
        return IncidentChange(transition=transition, tick=tick, incident=self.snapshot())

    def snapshot(self) -> Incident:
        """The incident as it stands."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(Incident)}
        if self.end is not None and self.course.returned is not None:
            fields["records"] = self.course.returned_after  # the rest only bore it out
        return Incident(**{**fields, "findings": tuple(self.findings)})

    def state_dict(self) -> dict[str, Any]:
        """All of it in JSON's terms."""
        return {
            "incident": dataclasses.asdict(self.snapshot()),
            "course": self.course.state_dict(),
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Episode":
        """The episode that `state_dict` described."""
        incident = Incident.from_state(state["incident"])
        own = {f.name for f in dataclasses.fields(cls)}
        known = {f.name for f in dataclasses.fields(incident)} & own
        return cls(
            **{name: getattr(incident, name) for name in known - {"findings"}},
            findings=list(incident.findings),
            course=Course.from_state(state["course"]),
            **{name: state[name] for name in _PLAIN},
        )

    def _listen(self, moment: Moment) -> None:
        """Whether the loss follows a silent alarm; if it does not, it was over with the alarm."""
        if self.records <= self.recovery_records and self.course.has_moved():
            self.incident_class, self.course.returned = None, None  # from now on it decides
        elif self.calm <= 1 and self.course.is_finite:
            self.course.set_returned(moment)

    def _kept_class(self) -> IncidentClass | None:
        """The class that a later loss does not change."""
        symptoms = {finding.symptom for finding in self.findings}
        if self.course.was_lost or (Symptom.NONFINITE_NORM in symptoms and self.is_loud):
            return IncidentClass.DIVERGENT  # weights that are no numbers do not mend themselves
        if Symptom.NO_LEARNING in symptoms:
            is_lost = self.is_loud and self.course.runs_away()
            return IncidentClass.DIVERGENT if is_lost else IncidentClass.PLATEAU
        return IncidentClass.SILENT if self.is_silent else None


_PLAIN = ("stride", "waiting", "calm", "blind", "num_reopened")


def _recovery_records(stride: float) -> int:
    return max(RECOVERY_RECORDS, math.ceil(RECOVERY_STEPS / stride))


def _badness(moment: Moment) -> float:
    """A number that orders losses from good to bad: non-finite is worse than any finite."""
    if moment.loss is None:
        return -math.inf
    return moment.loss if math.isfinite(moment.loss) else math.inf
