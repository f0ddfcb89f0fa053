"""The textbook's closing rules: over when back within mean + 0.5 sigma in 50 records.

Not back in 50 records: divergent if non-finite or still rising, else lingering. A finite level then
becomes the new normal; a non-finite incident stays open until a finite loss is seen.
"""

import math
from collections.abc import Sequence

from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import IncidentClass, Moment
from trimtab.core.robust import mean_and_deviation
from trimtab.detect.textbook import TextbookThresholds
from trimtab.explain.incidents.closing import ClosingRules, Ruling
from trimtab.explain.incidents.course import Course, Trend
from trimtab.explain.incidents.open_incident import OpenIncident

SILENT = frozenset({Symptom.RISING_LOSS, Symptom.NONFINITE_NORM})
"""Alarms without a jump of the loss."""

RISE_RECORDS = 10
"""Still rising is judged on the last 10 losses against the 10 before, by more than one deviation:
the textbook asks for "still rising" without a number; two means of 10 differ by noise alone by
0.45 deviations, so one whole deviation is a little over two standard errors."""


class TextbookClosing(ClosingRules):
    """The rules as the textbook states them. They neither date the onset back nor look ahead."""

    lead_records = 0

    def __init__(self, config: TextbookThresholds) -> None:
        super().__init__("measure")
        self._config = config
        self.history_records = config.window

    def start(self, before: Sequence[Moment], *, has_trend: bool) -> Course:
        """Return a course whose baseline is the mean and deviation of the finite losses before."""
        losses = [m.loss for m in before if m.loss is not None and math.isfinite(m.loss)]
        trend = None
        if len(losses) > 1:
            mean, deviation = mean_and_deviation(losses)
            trend = Trend.flat(level=mean, scale=deviation, step=before[-1].step)
        return Course(trend=trend, tail_records=self._config.recovery_records)

    def is_loud(self, finding: Finding) -> bool:
        """Return whether it is about the loss: all but a slow rise and a non-finite norm are."""
        return finding.symptom not in SILENT

    def may_reopen(self, incident: OpenIncident, since_closed: int) -> bool:
        """Return whether the alarm comes soon after the end, however often."""
        return since_closed <= self._config.reopen_records

    def class_if_reopened(self, incident: OpenIncident) -> IncidentClass | None:
        return None

    def is_echo(self, incident: OpenIncident, alarms: Sequence[Finding]) -> bool:
        return False

    def follow(self, incident: OpenIncident) -> None:
        """Do nothing: a silent incident stays so."""

    def rule_without_loss(self, incident: OpenIncident) -> Ruling:
        return Ruling()

    def rule(self, incident: OpenIncident, *, is_calm: bool) -> Ruling:
        """Close it if the loss is back; else classify it once its time is over.

        A finite level then becomes the new normal; a non-finite incident stays open.
        """
        if is_calm and self._is_back(incident):
            return Ruling(closed_as=_kept_class(incident) or IncidentClass.RECOVERABLE)
        if not self._is_due(incident):
            return Ruling()
        course = incident.course
        is_rising = not course.is_finite or _is_still_rising(course)
        otherwise = IncidentClass.DIVERGENT if is_rising else IncidentClass.LINGERING
        named = _kept_class(incident) or otherwise
        if not course.is_finite:
            return Ruling(incident_class=named)
        return Ruling(incident_class=named, new_normal=list(course.tail), closed_as=named)

    def class_at_end(self, incident: OpenIncident) -> IncidentClass | None:
        """Return divergent if the last loss is non-finite; of others nothing can be said yet."""
        if incident.incident_class is not None or incident.course.is_finite:
            return incident.incident_class
        return IncidentClass.DIVERGENT

    def _is_back(self, incident: OpenIncident) -> bool:
        loss, trend = incident.last.loss, incident.course.trend
        if loss is None or not math.isfinite(loss):
            return False
        if trend is None:
            return True  # too few losses came before: any finite loss counts as back
        return loss <= trend.level + self._config.recovery_sigmas * trend.scale

    def _is_due(self, incident: OpenIncident) -> bool:
        if incident.incident_class is IncidentClass.DIVERGENT:  # non-finite, and classified already
            return incident.course.is_finite
        return incident.waiting > self._config.recovery_records


def _kept_class(incident: OpenIncident) -> IncidentClass | None:
    kept = (IncidentClass.SILENT, IncidentClass.DIVERGENT)
    return incident.incident_class if incident.incident_class in kept else None


def _is_still_rising(course: Course) -> bool:
    losses = [moment.loss for moment in course.tail if moment.loss is not None]
    if len(losses) < 2 * RISE_RECORDS or course.trend is None:
        return False
    before, _ = mean_and_deviation(losses[-2 * RISE_RECORDS : -RISE_RECORDS])
    recent, _ = mean_and_deviation(losses[-RISE_RECORDS:])
    return recent - before > course.trend.scale
