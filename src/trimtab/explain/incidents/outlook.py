"""Outlook: a forecast of what will become of an open incident.

At 8 and at 32 records after the alarm, the remaining height of the loss says most: incidents that
then stood more than 13 % above the level they came from mostly took over 100 steps to come back,
the others did not. The certainty is the share of labelled incidents with this look that went that
way.
"""

from trimtab.core.incidents import IncidentClass, Outlook
from trimtab.core.robust import median
from trimtab.explain.incidents.course import Course

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


def foresee(course: Course, records: int, known: IncidentClass | None) -> Outlook:
    """What will probably become of an open incident; `known` is its class, if it has one."""
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
    """Whether the loss still rises; a spike that comes back has passed its peak by then."""
    latest = list(course.excess)[-2 * RISE_RECORDS :]
    rise = sum(latest[RISE_RECORDS:]) - sum(latest[:RISE_RECORDS])
    return len(latest) == 2 * RISE_RECORDS and rise > RISE_SCALES * RISE_RECORDS
