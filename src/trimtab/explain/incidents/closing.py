"""ClosingRules: when an incident is over, and which class it gets.

This is the part of the incident state machine in which rule sets differ. Rules have no state:
everything that is known about an incident is in its `OpenIncident`. After each record the tracker
asks for a `Ruling`.

Trimtab's rules: an incident is over when the loss is back on its trend, confirmed by 32 records.
Not back in 100 steps, or 2 records of a thinned log: still recovering while its gap to the trend
shrinks, divergent if non-finite or running away, else lingering. After four times that, a finite
level that no longer shrinks or rises is reported as the new normal. A silent incident
is over when the loss has not moved for 100 steps after the last alarm. Where records no longer have
a loss, an incident is over after four times the time to recover.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.findings import NOT_FINITE, Finding, Symptom
from trimtab.core.incidents import IncidentClass, Moment, Outlook
from trimtab.core.robust import median
from trimtab.explain.incidents.course import (
    BAD_RECORDS,
    CONFIRM_RECORDS,
    TAIL_RECORDS,
    Course,
    stride_of,
    trend_of,
)
from trimtab.explain.incidents.open_incident import OpenIncident


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What follows from a record, in the order of these fields."""

    outlook: Outlook | None = None
    """A new forecast."""
    incident_class: IncidentClass | None = None
    """The class that the incident has from now on; None if nothing is known that is new."""
    new_normal: Sequence[Moment] = ()
    """The records that become the history, where the loss did not come back."""
    new_level: float | None = None
    """Their level, if it is reported."""
    closed_as: IncidentClass | None = None
    """The class with which the incident is over; None if it goes on."""


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

MAX_SETTLED = 20
"""The same while the gap still shrinks, or the loss still rises: one story is one incident."""

CHECKS = 4
"""Times in the time to recover that an incident that is late is looked at: a gap that shrinks is
measured over many records, so looking at each would only find its noise."""

REOPEN_RECORDS = 16
"""An alarm this many records after an incident closed reopens it; a quarter of it in a thinned
log. One that did not come back is reopened for as long as it took to settle."""

MAX_REOPENED = 8
"""After this many times the next alarm is a new incident: no incident can be reopened for ever."""

HARD_BATCH_RECORDS = 8
"""An incident with a single high loss that is back after this many records was a hard batch..."""

STRONG = frozenset({Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE, Symptom.NONFINITE_GRAD_NORM})
"""... unless one of these shows that the batch was more than hard: it may have moved the
weights."""

LOUD = frozenset({Symptom.LOSS_SPIKE, Symptom.LEVEL_SHIFT, *NOT_FINITE, Symptom.RESUME_GAP})
"""What the loss itself shows, or the next one: a gradient that is not finite and was applied makes
it NaN. An incident with none of these is silent until the loss moves."""

ECHOES = frozenset({Symptom.LOSS_SPIKE, Symptom.LEVEL_SHIFT})
"""What may show an incident a second time, long after it began."""

_NOT_BACK = (IncidentClass.LINGERING, IncidentClass.DIVERGENT)


class ClosingRules:
    """The rules that were tuned on labelled public runs and lab runs.

    Another rule set overrides what it decides differently.
    """

    history_records: int = HISTORY_RECORDS
    lead_records: int = LEAD_RECORDS

    def __init__(self, objective: str = "auto") -> None:
        """Create them; `objective` is what the user says the loss is: auto, measure, surrogate."""
        self.objective = objective

    def start(self, before: Sequence[Moment], *, has_trend: bool) -> Course:
        """Return the course of a new incident, with the trend of these records as its baseline.

        A surrogate has no trend that it could come back to.
        """
        course = Course(trend=None, tail_records=TAIL_RECORDS, stride=stride_of(before))
        if has_trend:
            course.trend = trend_of(before, is_thinned=course.is_thinned)
        return course

    def is_loud(self, finding: Finding) -> bool:
        """Return whether the finding is about the loss; an incident with none is silent."""
        return finding.symptom in LOUD

    def may_reopen(self, incident: OpenIncident, since_closed: int) -> bool:
        """Return whether an alarm this many records after the end belongs to the incident."""
        limit = REOPEN_RECORDS // 4 if incident.course.is_thinned else REOPEN_RECORDS
        if incident.incident_class in _NOT_BACK and incident.new_level is not None:
            limit = max(limit, _max_records(incident))
        return since_closed <= limit and incident.num_reopened < MAX_REOPENED

    def class_if_reopened(self, incident: OpenIncident) -> IncidentClass | None:
        """Return silent for a silent incident: it stays so until the loss moves."""
        return IncidentClass.SILENT if incident.is_silent else None

    def is_echo(self, incident: OpenIncident, alarms: Sequence[Finding]) -> bool:
        """Return whether alarms are dated back into an incident whose loss did not come back."""
        end = incident.end
        if end is None or incident.incident_class not in _NOT_BACK:
            return False
        return all(
            alarm.symptom in ECHOES
            and alarm.onset_tick is not None
            and alarm.onset_tick <= end.tick
            for alarm in alarms
        )

    def follow(self, incident: OpenIncident) -> None:
        """Note whether the loss follows a silent incident; if not, it ended with the alarm.

        It is called after each record with a loss, also one from before the alarm. A finite loss
        after a NaN that seemed to stay says that it did not: from there on the loss decides.
        """
        course = incident.course
        if course.is_finite_again and incident.incident_class is IncidentClass.DIVERGENT:
            incident.incident_class, incident.waiting = None, 0
        if not incident.is_silent:
            return
        if course.records <= course.recovery_records and course.has_moved():
            incident.incident_class, course.returned = None, None  # from now on the loss decides
        elif incident.calm <= 1 and course.is_finite:
            course.set_returned(incident.last)

    def rule(self, incident: OpenIncident, *, is_calm: bool) -> Ruling:
        """Close it if the loss is back or never moved; else forecast, classify, or give up.

        It is called after each record with a loss; `is_calm` if that raised no alarm.
        """
        if _is_hard_batch(incident):
            return Ruling(closed_as=IncidentClass.HARD_BATCH)
        if is_calm and _is_over(incident):
            return Ruling(closed_as=_class_if_back(incident))
        outlook = None
        if incident.waiting in OUTLOOK_RECORDS:
            known = incident.incident_class or _kept_class(incident)
            outlook = _forecast(incident.course, incident.waiting, known)
        named = None
        if _is_checked(incident):
            incident.back_in = incident.course.back_in()
        if _is_due(incident):
            named = _class_if_not_back(incident)
        if not incident.course.is_finite or not _has_settled(incident):
            return Ruling(outlook=outlook, incident_class=named)
        if incident.is_silent:  # its losses never left the old level
            return Ruling(outlook=outlook, incident_class=named, closed_as=IncidentClass.SILENT)
        course = incident.course
        if course.returned is not None and course.finite_records < CONFIRM_RECORDS:
            # NaNs now and then have kept it from being confirmed.
            return Ruling(outlook=outlook, closed_as=_class_if_back(incident))
        normal = list(course.tail)[-LEVEL_RECORDS:]
        return Ruling(
            outlook=outlook,
            incident_class=named,
            new_normal=normal,
            new_level=median([moment.loss or 0.0 for moment in normal]),
            closed_as=_class_if_not_back(incident),
        )

    def rule_without_loss(self, incident: OpenIncident) -> Ruling:
        """Close it after as many records without a loss as an incident may last."""
        if incident.missing <= _max_records(incident):
            return Ruling()
        return Ruling(closed_as=incident.incident_class or IncidentClass.SILENT)

    def class_at_end(self, incident: OpenIncident) -> IncidentClass | None:
        """Return the class it has or will probably get; None if it is too early to say."""
        if incident.incident_class in _NOT_BACK:
            return _class_if_not_back(incident)
        if incident.incident_class is not None:
            return _kept_class(incident) or incident.incident_class
        if incident.course.runs_away():
            return IncidentClass.DIVERGENT
        if incident.course.returned is not None or incident.back_in is not None:
            return _class_if_back(incident)
        return incident.outlook.incident_class if incident.outlook else None


def _max_records(incident: OpenIncident) -> int:
    """Return after how many records it is over, whatever a finite loss does."""
    return SETTLED * incident.course.recovery_records


def _has_settled(incident: OpenIncident) -> bool:
    """Return whether a finite loss has reached a level of its own."""
    course, limit = incident.course, _max_records(incident)
    if incident.waiting <= limit:
        return False
    if incident.waiting > limit * MAX_SETTLED // SETTLED or incident.is_silent:
        return True
    return incident.back_in is None and not course.is_rising()


def _is_checked(incident: OpenIncident) -> bool:
    """Return whether it is time to see whether a late incident recovers."""
    time = incident.course.recovery_records
    return incident.waiting > time and (incident.waiting - time) % max(time // CHECKS, 1) == 0


def _is_due(incident: OpenIncident) -> bool:
    """Return whether the time to recover is over, or a NaN has come to stay.

    An incident whose gap shrinks is still recovering. One that is not back is classified again each
    time that this time has passed again.
    """
    course, time = incident.course, incident.course.recovery_records
    if course.bad_records >= BAD_RECORDS and incident.incident_class is None:
        return True
    if incident.incident_class is None:
        is_late = _is_checked(incident) and course.returned is None
        return is_late and incident.back_in is None
    return incident.incident_class in _NOT_BACK and incident.waiting % time == 1


def _is_over(incident: OpenIncident) -> bool:
    """Return whether the loss is back; of a silent one, whether the loss did not follow in time."""
    course = incident.course
    if not incident.is_silent:
        return course.is_back(incident.waiting)
    # Without a trend nothing can follow; a policy's other signals can.
    is_young = course.trend is None and not incident.is_surrogate
    is_late = incident.calm >= course.recovery_records or is_young
    return course.is_finite and is_late


def _is_hard_batch(incident: OpenIncident) -> bool:
    """Return whether one high loss was followed by two usual ones."""
    course = incident.course
    # Three records, the high one and two usual ones; a reopened incident has more.
    if incident.waiting != 3 or course.records != 3 or course.is_thinned:
        return False
    only_loss = all(finding.symptom == Symptom.LOSS_SPIKE for finding in incident.findings)
    was_first = incident.onset.tick == incident.peak.tick and len(course.excess) == 3
    return only_loss and was_first and course.num_high <= 1


def _class_if_back(incident: OpenIncident) -> IncidentClass:
    """Return the class of an incident whose loss is back."""
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
    was_recovering = incident.incident_class not in _NOT_BACK
    return IncidentClass.RECOVERABLE if in_time or was_recovering else IncidentClass.LINGERING


def _class_if_not_back(incident: OpenIncident) -> IncidentClass:
    return _kept_class(incident) or (
        IncidentClass.DIVERGENT if incident.course.runs_away() else IncidentClass.LINGERING
    )


def _kept_class(incident: OpenIncident) -> IncidentClass | None:
    """Return the class that a later loss does not change."""
    if incident.is_loud and not incident.has_finite_state:
        return IncidentClass.DIVERGENT  # non-finite weights do not recover by themselves
    if any(finding.symptom == Symptom.NO_LEARNING for finding in incident.findings):
        is_lost = incident.is_loud and incident.course.runs_away()
        return IncidentClass.DIVERGENT if is_lost else IncidentClass.PLATEAU
    return IncidentClass.SILENT if incident.is_silent else None


# The outlook: a forecast of what will become of an open incident.
#
# At 8 and at 32 records after the alarm, the remaining height of the loss says most: incidents that
# then stood more than 13 % above the level they came from mostly took over 100 steps to come back,
# the others did not. The certainty is the share of labelled incidents like this one that went that
# way.

OUTLOOK_RECORDS = (8, 32)
"""Records after the alarm at which an outlook is given."""

HEIGHT_RECORDS, HIGH_SHARE = 4, 0.13
"""The remaining height is the median of the last 4 losses, above the trend, as a share of its
level. Equal results: 0.12 to 0.15. In units of the run's noise it says nothing: calm runs of 8B
parameters come back from 12 scales, noisy small ones do not from 2."""

RISE_RECORDS, RISE_SCALES = 8, 0.7
"""At the second look a high loss still rises if the mean of the last 8 is this far above that of
the 8 before. Spikes of public runs peak after 17 records and fall from then on."""

_COUNTS = {
    (8, IncidentClass.DIVERGENT): (12, 12),
    (8, IncidentClass.LINGERING): (16, 16),
    (8, IncidentClass.RECOVERABLE): (12, 15),
    (8, IncidentClass.SILENT): (55, 82),
    (32, IncidentClass.DIVERGENT): (11, 11),
    (32, IncidentClass.LINGERING): (9, 10),
    (32, IncidentClass.RECOVERABLE): (13, 21),
    (32, IncidentClass.SILENT): (53, 73),
}
"""Of how many incidents with this outlook it came true: 49 labelled ones of public runs and 104 of
lab runs, tuning splits only (`scripts/bench detect classes`, the table of certainties). Some counts
are small: the certainty adds one of each kind, so that 2 of 2 does not count as certain."""


def _forecast(course: Course, records: int, known: IncidentClass | None) -> Outlook:
    """Forecast what will become of an open incident; `known` is its class, if it has one."""
    likely = known or _likely(course, is_late=records == OUTLOOK_RECORDS[-1])
    right, seen = _COUNTS.get((records, likely), (0, 0))
    return Outlook(incident_class=likely, certainty=(right + 1) / (seen + 2), records=records)


def _likely(course: Course, *, is_late: bool) -> IncidentClass:
    if not course.is_finite:
        return IncidentClass.DIVERGENT
    trend, latest = course.trend, list(course.excess)[-HEIGHT_RECORDS:]
    if trend is None or not latest:
        return IncidentClass.RECOVERABLE  # any finite loss counts as back
    if median(latest) * trend.scale <= HIGH_SHARE * abs(trend.level):
        return IncidentClass.RECOVERABLE
    return IncidentClass.DIVERGENT if is_late and _rises(course) else IncidentClass.LINGERING


def _rises(course: Course) -> bool:
    """Return whether the loss still rises; a spike that comes back is past its peak by then."""
    latest = list(course.excess)[-2 * RISE_RECORDS :]
    rise = sum(latest[RISE_RECORDS:]) - sum(latest[:RISE_RECORDS])
    return len(latest) == 2 * RISE_RECORDS and rise > RISE_SCALES * RISE_RECORDS
