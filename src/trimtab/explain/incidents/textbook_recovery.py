"""The textbook's recovery: back within mean + 0.5 sigma in 50 records.

Not back in 50 records: divergent if non-finite or still rising, else lingering. A finite level then
becomes the new normal; a non-finite incident stays open until a finite loss is seen.
"""

import math
from collections.abc import Sequence

from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import IncidentClass, Moment
from trimtab.core.robust import mean_and_deviation
from trimtab.detect.textbook.thresholds import TextbookThresholds
from trimtab.explain.incidents.course import Course
from trimtab.explain.incidents.open_incident import OpenIncident
from trimtab.explain.incidents.recovery import Recovery
from trimtab.explain.incidents.trend import Trend

SILENT = frozenset({Symptom.RISING_LOSS, Symptom.NONFINITE_NORM})
"""Alarms without a jump of the loss."""

RISE_RECORDS = 10
"""Still rising is judged on the last 10 losses against the 10 before, by more than one deviation:
the textbook asks for "still rising" without a number; two means of 10 differ by noise alone by
0.45 deviations, so one whole deviation is a little over two standard errors."""


class TextbookRecovery(Recovery):
    """The rules as the textbook states them. It neither dates the onset back nor looks ahead."""

    def __init__(self, config: TextbookThresholds) -> None:
        self._config = config
        self.history_records = config.window

    def start(self, before: Sequence[Moment]) -> Course:
        """The mean and deviation of the finite losses in the window are the baseline."""
        losses = [m.loss for m in before if m.loss is not None and math.isfinite(m.loss)]
        trend = None
        if len(losses) > 1:
            mean, deviation = mean_and_deviation(losses)
            trend = Trend.flat(level=mean, scale=deviation, step=before[-1].step)
        return Course(trend=trend, tail_records=self._config.recovery_records)

    def shows_in_loss(self, finding: Finding) -> bool:
        """Every alarm but a slow rise and a non-finite norm is about the loss."""
        return finding.symptom not in SILENT

    def may_reopen(self, incident: OpenIncident, since_closed: int) -> bool:
        """An alarm soon after the end reopens the incident, however often."""
        return since_closed <= self._config.reopen_records

    def class_if_over(self, incident: OpenIncident, *, is_calm: bool) -> IncidentClass | None:
        """Recoverable if this loss is back, unless it has a class that stays."""
        if not is_calm or not self._is_back(incident):
            return None
        return _kept_class(incident) or IncidentClass.RECOVERABLE

    def class_if_due(self, incident: OpenIncident) -> IncidentClass | None:
        """Divergent or lingering once the records that a recovery may take are over."""
        if not self._is_due(incident):
            return None
        is_rising = not incident.course.is_finite or _is_still_rising(incident.course)
        otherwise = IncidentClass.DIVERGENT if is_rising else IncidentClass.LINGERING
        return _kept_class(incident) or otherwise

    def class_if_settled(self, incident: OpenIncident) -> IncidentClass | None:
        """The class it has, once it is due and finite."""
        is_settled = incident.course.is_finite and self._is_due(incident)
        return incident.incident_class if is_settled else None

    def new_normal(self, incident: OpenIncident) -> Sequence[Moment]:
        """All finite losses since the onset that are remembered."""
        return list(incident.course.tail)

    def class_at_end(self, incident: OpenIncident) -> IncidentClass | None:
        """Divergent if the last loss is non-finite; of others nothing can be said yet."""
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
    """The class that a later loss does not change."""
    kept = (IncidentClass.SILENT, IncidentClass.DIVERGENT)
    return incident.incident_class if incident.incident_class in kept else None


def _is_still_rising(course: Course) -> bool:
    losses = [moment.loss for moment in course.tail if moment.loss is not None]
    if len(losses) < 2 * RISE_RECORDS or course.trend is None:
        return False
    before, _ = mean_and_deviation(losses[-2 * RISE_RECORDS : -RISE_RECORDS])
    recent, _ = mean_and_deviation(losses[-RISE_RECORDS:])
    return recent - before > course.trend.scale
