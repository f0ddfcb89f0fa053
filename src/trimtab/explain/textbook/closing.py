"""The textbook's incidents: over when back within mean + 0.5 sigma in 50 records.

Not back in 50 records: divergent if non-finite or still rising, else lingering. A finite level then
becomes the new normal; a non-finite incident stays open until a finite loss is seen.
"""

import dataclasses
import math
from collections.abc import Sequence

from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import IncidentClass, Moment
from trimtab.core.robust import mean_and_deviation
from trimtab.detect.loss.meaning import LossMeaning
from trimtab.detect.textbook import TextbookThresholds
from trimtab.explain.incidents.history import History
from trimtab.explain.incidents.open_incident import OpenIncident
from trimtab.explain.incidents.rules import GOES_ON, IncidentRules, Ruling
from trimtab.explain.verdict.facts import Past
from trimtab.explain.verdict.reference import Reference
from trimtab.explain.verdict.rows import Losses, Row
from trimtab.explain.verdict.table import OPEN, Classified

QUIET_SYMPTOMS = frozenset({Symptom.RISING_LOSS, Symptom.NONFINITE_NORM})
"""Alarms without a jump of the loss."""

RISE_RECORDS = 10
"""Still rising is judged on the last 10 losses against the 10 before, by more than one deviation:
the textbook asks for "still rising" without a number; two means of 10 differ by noise alone by
0.45 deviations, so one whole deviation is a little over two standard errors."""

SILENT, RECOVERED, LINGERING, DIVERGENT = (
    Classified(incident_class=named, certainty=1.0)
    for named in (
        IncidentClass.SILENT,
        IncidentClass.RECOVERED,
        IncidentClass.LINGERING,
        IncidentClass.DIVERGENT,
    )
)


class TextbookIncidents(IncidentRules):
    """The rules as the textbook states them. They neither date the onset back nor look ahead."""

    lead_records = 0

    def __init__(self, config: TextbookThresholds) -> None:
        super().__init__("measure")
        self._config = config
        self.history_records = config.window

    def begin(
        self, before: Sequence[Row], onset: Row, history: History, meaning: LossMeaning
    ) -> Past:
        """Return a past whose level is the mean of the finite losses before."""
        past = super().begin(before, onset, history, meaning)
        losses = Losses.of(before).loss
        level, deviation = mean_and_deviation(losses) if len(losses) > 1 else (None, None)
        reference = past.reference
        if level is not None and deviation is not None:
            reference = Reference(
                records=len(losses),
                onset_step=onset.step,
                first_step=reference.first_step,
                start=reference.start,
                level=level,
                level_error=0.0,
                noise=deviation,
                history=tuple(losses.tolist()),
            )
        return dataclasses.replace(past, reference=reference)

    def date_onset(self, rows: Sequence[Row], latest: int) -> int:
        """Return the row of the alarm."""
        return latest

    def is_loud(self, finding: Finding) -> bool:
        """Return whether it is about the loss: all but a slow rise and a non-finite norm are."""
        return finding.symptom not in QUIET_SYMPTOMS

    def may_reopen(self, incident: OpenIncident, since_closed: int) -> bool:
        """Return whether the alarm comes soon after the end, however often."""
        return since_closed <= self._config.reopen_records

    def is_echo(self, closed: OpenIncident, alarms: Sequence[Finding]) -> bool:
        return False

    def open(self, incident: OpenIncident) -> None:
        """Say nothing yet, or that the loss raised no alarm."""
        incident.found = OPEN if incident.is_loud else SILENT

    def judge(self, incident: OpenIncident, *, is_look: bool, is_calm: bool) -> Ruling:
        """Close it if the loss is back; else classify it once its time is over.

        A finite level then becomes the new normal; a non-finite incident stays open.
        """
        if incident.is_loud and incident.found == SILENT:
            incident.found = OPEN  # an alarm about the loss has joined it
        kept = _kept(incident)
        if is_calm and self._is_back(incident):
            return Ruling(found=kept or RECOVERED, is_over=True)
        if not self._is_due(incident):
            return GOES_ON
        is_finite = _is_finite(incident)
        is_rising = not is_finite or _is_still_rising(incident)
        named = kept or (DIVERGENT if is_rising else LINGERING)
        return Ruling(found=named, is_over=is_finite, is_settled=is_finite)

    def judge_missing(self, incident: OpenIncident) -> Ruling:
        return GOES_ON

    def at_end(self, incident: OpenIncident) -> Classified:
        """Return divergent if the last loss is non-finite; of others nothing can be said yet."""
        is_known = incident.incident_class is not IncidentClass.OPEN
        return incident.found if is_known or _is_finite(incident) else DIVERGENT

    def end_of(self, incident: OpenIncident, *, is_settled: bool) -> Moment:
        return incident.last

    def history_after(self, incident: OpenIncident, *, is_settled: bool) -> list[Row]:
        return incident.rows[-self._config.recovery_records :] if is_settled else []

    def _is_back(self, incident: OpenIncident) -> bool:
        reference = incident.past.reference
        if incident.last.loss is None or not _is_finite(incident):
            return False
        if not reference.has_level:
            return True  # too few losses came before: any finite loss counts as back
        return incident.last.loss <= (
            reference.level + self._config.recovery_sigmas * reference.noise
        )

    def _is_due(self, incident: OpenIncident) -> bool:
        if incident.incident_class is IncidentClass.DIVERGENT:  # non-finite, and classified already
            return _is_finite(incident)
        return incident.num_rows - incident.rows_before > self._config.recovery_records


def _kept(incident: OpenIncident) -> Classified | None:
    kept = (IncidentClass.SILENT, IncidentClass.DIVERGENT)
    return incident.found if incident.incident_class in kept else None


def _is_finite(incident: OpenIncident) -> bool:
    return incident.last.loss is None or math.isfinite(incident.last.loss)


def _is_still_rising(incident: OpenIncident) -> bool:
    losses = Losses.of(incident.rows).loss[-incident.num_rows :]
    if len(losses) < 2 * RISE_RECORDS or not incident.past.reference.has_level:
        return False
    before, _ = mean_and_deviation(losses[-2 * RISE_RECORDS : -RISE_RECORDS])
    recent, _ = mean_and_deviation(losses[-RISE_RECORDS:])
    return recent - before > incident.past.reference.noise
