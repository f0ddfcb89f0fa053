"""Trimtab's recovery: back on its trend, confirmed by 32 records.

Not back in 100 steps, or 2 records of a thinned log: divergent if non-finite or running away, else
lingering. After four times that, a finite level is reported as the new normal.

A silent incident is over when the loss has not moved for 100 steps after the last alarm. Where
records no longer have a loss, an incident is over after four times the time to recover.
"""

from collections.abc import Sequence

from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import IncidentClass, Moment, Outlook
from trimtab.core.robust import median
from trimtab.explain.incidents.course import BAD_RECORDS, TAIL_RECORDS, Course, stride_of
from trimtab.explain.incidents.open_incident import OpenIncident
from trimtab.explain.incidents.outlook import OUTLOOK_RECORDS, foresee
from trimtab.explain.incidents.recovery import Recovery
from trimtab.explain.incidents.trend import trend_of

HISTORY_RECORDS = 256
"""Records that are remembered: the baseline before an onset that is dated back."""

LEAD_RECORDS = 8
"""A warning this many records before the onset, or before the next warning, belongs to it. Source:
spikes follow one to eight steps after their first signs."""

LEVEL_RECORDS = 32
"""Records whose median is the level that is reported as the new normal."""

SETTLED = 4
"""After this many times the recovery time the level is reported as the new normal: an incident
cannot alarm for ever."""

REOPEN_RECORDS = 16
"""An alarm this many records after an incident closed reopens it; a quarter of it in a thinned
log."""

MAX_REOPENED = 8
"""After this many times the next alarm is a new incident: no incident can be reopened for ever."""

HARD_BATCH_RECORDS = 8
"""An incident with a single high loss that is back after this many records was a hard batch..."""

STRONG = frozenset({Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE, Symptom.NONFINITE_GRAD_NORM})
"""... unless one of these shows that the batch was more than hard: it may have moved the
weights."""

LOUD = frozenset(
    {
        Symptom.LOSS_SPIKE,
        Symptom.LEVEL_SHIFT,
        Symptom.NONFINITE_LOSS,
        Symptom.RESUME_GAP,
    }
)
"""What the loss itself shows. An incident with none of these is silent until the loss moves."""

ECHOES = frozenset({Symptom.LOSS_SPIKE, Symptom.LEVEL_SHIFT})
"""What may show an incident a second time, long after it began."""

_NOT_BACK = (IncidentClass.LINGERING, IncidentClass.DIVERGENT)


class TrimtabRecovery(Recovery):
    """The rules that were tuned on labelled public runs and lab runs."""

    history_records = HISTORY_RECORDS
    lead_records = LEAD_RECORDS

    def start(self, before: Sequence[Moment]) -> Course:
        """The trend of the records before is the baseline."""
        course = Course(trend=None, tail_records=TAIL_RECORDS, stride=stride_of(before))
        course.trend = trend_of(before, is_thinned=course.is_thinned)
        return course

    def shows_in_loss(self, finding: Finding) -> bool:
        """Only what the loss itself shows."""
        return finding.symptom in LOUD

    def may_reopen(self, incident: OpenIncident, since_closed: int) -> bool:
        """An alarm soon after the end reopens the incident, a few times."""
        limit = REOPEN_RECORDS // 4 if incident.course.is_thinned else REOPEN_RECORDS
        return since_closed <= limit and incident.num_reopened < MAX_REOPENED

    def is_echo(self, incident: OpenIncident, alarms: Sequence[Finding]) -> bool:
        """Alarms that are dated back into an incident whose loss did not come back."""
        end = incident.end
        if end is None or incident.incident_class not in _NOT_BACK:
            return False
        return all(
            alarm.symptom in ECHOES
            and alarm.onset_tick is not None
            and alarm.onset_tick <= end.tick
            for alarm in alarms
        )

    def class_if_reopened(self, incident: OpenIncident) -> IncidentClass | None:
        """A silent incident stays silent until the loss moves."""
        return IncidentClass.SILENT if incident.is_silent else None

    def follow(self, incident: OpenIncident) -> None:
        """Of a silent incident, see whether the loss follows; if not, it ended with the alarm."""
        if not incident.is_silent:
            return
        course = incident.course
        if course.records <= course.recovery_records and course.has_moved():
            incident.incident_class, course.returned = None, None  # from now on the loss decides
        elif incident.calm <= 1 and course.is_finite:
            course.set_returned(incident.last)

    def class_if_over(self, incident: OpenIncident, *, is_calm: bool) -> IncidentClass | None:
        """A hard batch, or an incident whose loss is back or never moved."""
        if _is_hard_batch(incident):
            return IncidentClass.HARD_BATCH
        return _class_if_back(incident) if is_calm and _is_over(incident) else None

    def outlook(self, incident: OpenIncident) -> Outlook | None:
        """Look ahead 8 and 32 records after the alarm."""
        if incident.waiting not in OUTLOOK_RECORDS:
            return None
        known = incident.incident_class or _kept_class(incident)
        return foresee(incident.course, incident.waiting, known)

    def class_if_due(self, incident: OpenIncident) -> IncidentClass | None:
        """Divergent or lingering once the time to recover is over, or a NaN has come to stay.

        An incident that is not back is classified again each time that this time has passed again.
        """
        course, time = incident.course, incident.course.recovery_records
        if incident.incident_class is None:
            is_late = incident.waiting > time and course.returned is None
            is_due = is_late or course.bad_records >= BAD_RECORDS
        else:
            is_due = incident.incident_class in _NOT_BACK and incident.waiting % time == 1
        return _class_if_not_back(incident) if is_due else None

    def class_if_settled(self, incident: OpenIncident) -> IncidentClass | None:
        """Its class once a finite incident has lasted four times the time to recover."""
        if not incident.course.is_finite or incident.waiting <= _max_records(incident):
            return None
        return IncidentClass.SILENT if incident.is_silent else _class_if_not_back(incident)

    def new_normal(self, incident: OpenIncident) -> Sequence[Moment]:
        """The latest finite losses; those of a silent incident never left the old level."""
        return [] if incident.is_silent else list(incident.course.tail)[-LEVEL_RECORDS:]

    def new_level(self, normal: Sequence[Moment]) -> float | None:
        """The median of the latest losses."""
        return median([moment.loss or 0.0 for moment in normal])

    def class_at_end(self, incident: OpenIncident) -> IncidentClass | None:
        """The class it has or will probably get."""
        if incident.incident_class in _NOT_BACK:
            return _class_if_not_back(incident)
        if incident.incident_class is not None:
            return _kept_class(incident) or incident.incident_class
        if incident.course.runs_away():
            return IncidentClass.DIVERGENT
        if incident.course.returned is not None:
            return _class_if_back(incident)
        return incident.outlook.incident_class if incident.outlook else None

    def is_out_of_losses(self, incident: OpenIncident) -> bool:
        """After as many records without a loss as an incident may last."""
        return incident.missing > _max_records(incident)


def _max_records(incident: OpenIncident) -> int:
    """Records after the alarm at which it is over, whatever the loss does, if it is finite."""
    return SETTLED * incident.course.recovery_records


def _is_over(incident: OpenIncident) -> bool:
    """Whether the loss is back; of a silent one, whether the loss did not follow in time."""
    course = incident.course
    if not incident.is_silent:
        return course.is_back(incident.waiting)
    is_late = incident.calm >= course.recovery_records or course.trend is None
    return course.is_finite and is_late


def _is_hard_batch(incident: OpenIncident) -> bool:
    """Whether one high loss was followed by two usual ones."""
    course = incident.course
    if incident.waiting != 3 or course.records != 3 or course.is_thinned:
        return False
    only_loss = all(finding.symptom == Symptom.LOSS_SPIKE for finding in incident.findings)
    was_first = incident.onset.tick == incident.peak.tick and len(course.excess) == 3
    return only_loss and was_first and course.num_high <= 1


def _class_if_back(incident: OpenIncident) -> IncidentClass:
    """The class of an incident whose loss is back."""
    kept = _kept_class(incident)
    if kept is not None:
        return kept
    course = incident.course
    after = course.returned_after
    is_single = course.num_high == 1 and not course.is_thinned
    is_weak = not any(finding.symptom in STRONG for finding in incident.findings)
    if is_single and is_weak and after <= HARD_BATCH_RECORDS:
        return IncidentClass.HARD_BATCH
    in_time = after <= course.recovery_records + course.near_records
    return IncidentClass.RECOVERABLE if in_time else IncidentClass.LINGERING


def _class_if_not_back(incident: OpenIncident) -> IncidentClass:
    """The class of an incident whose loss did not come back in time."""
    return _kept_class(incident) or (
        IncidentClass.DIVERGENT if incident.course.runs_away() else IncidentClass.LINGERING
    )


def _kept_class(incident: OpenIncident) -> IncidentClass | None:
    """The class that a later loss does not change."""
    symptoms = {finding.symptom for finding in incident.findings}
    if incident.course.was_lost or (Symptom.NONFINITE_NORM in symptoms and incident.is_loud):
        return IncidentClass.DIVERGENT  # non-finite weights do not recover by themselves
    if Symptom.NO_LEARNING in symptoms:
        is_lost = incident.is_loud and incident.course.runs_away()
        return IncidentClass.DIVERGENT if is_lost else IncidentClass.PLATEAU
    return IncidentClass.SILENT if incident.is_silent else None
