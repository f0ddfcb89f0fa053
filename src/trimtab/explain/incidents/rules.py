"""IncidentRules: when an incident begins, which class it gets, and when it is over.

This is the part of the incident state machine in which rule sets differ. Rules have no state:
everything that is known about an incident is in its `OpenIncident`, and what they say follows from
its facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.findings import NOT_FINITE, Finding, Symptom
from trimtab.core.incidents import IncidentClass, Moment
from trimtab.detect.loss.meaning import LossMeaning
from trimtab.explain.incidents.history import History
from trimtab.explain.incidents.open_incident import OpenIncident
from trimtab.explain.verdict.facts import Past, back_at
from trimtab.explain.verdict.level import midmean
from trimtab.explain.verdict.onset import date_onset
from trimtab.explain.verdict.reference import HISTORY, Reference, reference_of
from trimtab.explain.verdict.rows import Losses, Row, stride_of
from trimtab.explain.verdict.table import OPEN, Classified, classify


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What follows from a record of an open incident."""

    found: Classified | None = None
    """The class from now on; None if it stays."""
    is_over: bool = False
    is_settled: bool = False
    """Whether it is over because its level is the new normal."""


GOES_ON = Ruling()

LEAD_RECORDS = 8
"""A warning this many records before the onset, or before the next warning, belongs to it. Source:
spikes follow one to eight steps after their first signs."""

REOPEN_RECORDS, REOPEN_RECORDS_THINNED = 16, 4
"""An alarm this many records after an incident closed reopens it; fewer in a log that skips
steps."""

MAX_REOPENED = 8
"""After this many times the next alarm is a new incident: no incident can be reopened for ever."""

CLOSE_RECORDS, SHORTEST = 16, 32
"""Records from the first look at which the loss was ordinary, and from the onset, after which it is
over. Source: the study of verdicts."""

DOUBT_RECORDS = 128
"""Records without an alarm, from the first look at which the loss was ordinary, after which it is
over although the gap is not quite within its tolerance. Chosen: a gap that small is never closed
by a trend that bends."""

APART_RECORDS = 16
"""Records without an alarm after which a grave one is no part of an incident that heals. Chosen: as
many as close one whose loss is ordinary."""

CALM_STEPS, MIN_CALM = 100, 2
"""Steps, but at least records, without an alarm after which an incident that the loss did not
follow is over. Source: the time in which the loss follows in the lab."""

SETTLE_RECORDS, SETTLE_STEPS = 32, 400
"""Records and steps for which the loss must have been on its new level to be over: an incident
cannot alarm for ever."""

RISES_ERRORS, RISES_SHARE = 4.0, 0.02
"""Standard errors and fraction of the loss by which its second half on a new level must be higher
for the loss to rise still. Chosen: 2 % is the border of the public labels."""

MISSING_RECORDS = 400
"""Records without a loss or a reward after which an incident is over. Chosen."""

LOUD = frozenset({Symptom.LOSS_SPIKE, Symptom.LEVEL_SHIFT, *NOT_FINITE, Symptom.RESUME_GAP})
"""What the loss itself shows, or the next one: a gradient that is not finite and was applied makes
it NaN. An incident with none of these is silent until the loss moves."""

ECHOES = frozenset({Symptom.LOSS_SPIKE, Symptom.LEVEL_SHIFT})
"""What may show an incident a second time, long after it began."""

GRAVE = frozenset(
    {*LOUD, Symptom.LR_JUMP, Symptom.FROZEN, Symptom.HARMED_STATE, Symptom.NONFINITE_NORM}
)
"""What is an incident of its own, if it comes when another one is all but over."""

SURE = 0.9
"""Certainty from which on one look is enough."""

ECHO_RECORDS = 8
"""Records after the end of an incident at which an echo of it may seem to begin."""

NORMS = 32
"""Records before an onset whose median is the usual gradient norm. Chosen: enough for a median."""

_HELD = frozenset(
    {
        IncidentClass.LINGERING,
        IncidentClass.COLLAPSED,
        IncidentClass.DIVERGENT,
        IncidentClass.DEAD,
        IncidentClass.PLATEAU,
    }
)
"""What does not pass by itself."""


class IncidentRules:
    """Trimtab's rules: the class is that of the table, said when two looks in a row agree."""

    history_records = HISTORY + 64
    lead_records = LEAD_RECORDS

    def __init__(self, objective: str = "auto") -> None:
        """Create them; `objective` is what the user says the loss is: auto, measure, surrogate."""
        self.objective = objective

    def begin(
        self, before: Sequence[Row], onset: Row, history: History, meaning: LossMeaning
    ) -> Past:
        """Return what is known of the run before the onset of an incident."""
        first_step = onset.step if history.first_step is None else history.first_step
        start = history.start.level
        lrs = [row.lr for row in before[-6:] if row.lr is not None and np.isfinite(row.lr)]
        norms = [row.norm for row in before[-NORMS:] if row.norm is not None]
        rewards = [row.reward for row in before if row.reward is not None]
        return Past(
            reference=reference_of(before, onset.step, first_step, start),
            is_measure=not meaning.is_surrogate(onset.tick),
            has_direction=meaning.has_direction(onset.tick),
            stride=stride_of(before),
            lrs=tuple(lrs),
            highest_lr=history.highest_lr,
            rewards=tuple(rewards[-64:]),
            norm=float(np.median(norms)) if norms else None,
            evaluations=tuple(history.evaluations),
            longest_return=history.longest_return,
        )

    def date_onset(self, rows: Sequence[Row], latest: int) -> int:
        """Return the index of the row in which the loss began to leave its trend."""
        return date_onset(rows, latest)

    def is_loud(self, finding: Finding) -> bool:
        """Return whether the finding is about the loss; an incident with none is silent."""
        return finding.symptom in LOUD

    def may_reopen(self, incident: OpenIncident, since_closed: int) -> bool:
        """Return whether an alarm this many records after the end belongs to the incident."""
        limit = REOPEN_RECORDS if incident.past.stride < 2 else REOPEN_RECORDS_THINNED
        return since_closed <= limit and incident.num_reopened < MAX_REOPENED

    def is_echo(self, closed: OpenIncident, alarms: Sequence[Finding]) -> bool:
        """Return whether alarms show what a closed incident was, a second time."""
        if closed.end is None:
            return False
        last = closed.end.tick + ECHO_RECORDS
        return all(
            alarm.symptom in ECHOES and alarm.onset_tick is not None and alarm.onset_tick <= last
            for alarm in alarms
        )

    def is_apart(self, incident: OpenIncident, alarms: Sequence[Finding], row: Row | None) -> bool:
        """Return whether alarms begin another incident, although this one is not over yet.

        A loss that is on its way back is joined by what stays under its peak, one that goes on
        rising by all that follows.
        """
        grave = [alarm for alarm in alarms if alarm.symptom in GRAVE]
        if not grave or incident.calm < APART_RECORDS or row is None or row.is_kept_out:
            return False
        last = incident.last_alarm.tick + ECHO_RECORDS
        if all(a.onset_tick is not None and a.onset_tick <= last for a in grave):
            return False  # an echo
        known = {finding.symptom for finding in incident.findings}
        # NaN that comes back now and then is one story.
        new = [alarm for alarm in grave if alarm.symptom not in known & NOT_FINITE]
        if incident.seen is IncidentClass.RECOVERED or incident.started_again:
            return bool(new)
        peak, loss = incident.peak.loss, row.loss
        is_higher = peak is not None and loss is not None and loss > peak
        is_bad = bool(new) and loss is not None and not row.is_finite
        return incident.seen is IncidentClass.RECOVERING and (is_bad or is_higher)

    def open(self, incident: OpenIncident) -> None:
        """Say the class of an incident that has just been opened, as far as it is sure."""
        incident.found = self.at_end(incident)
        incident.seen = incident.incident_class

    def judge(self, incident: OpenIncident, *, is_look: bool, is_calm: bool) -> Ruling:
        """Classify an incident at a look, and close it if it is over."""
        if not is_look:
            return GOES_ON
        found = self.classify(incident)
        is_sure = found.incident_class is incident.seen or _is_at_once(found, incident)
        incident.seen = found.incident_class
        if found.incident_class in _HELD:
            incident.back_since = None
        elif found.incident_class not in (IncidentClass.OPEN, IncidentClass.RECOVERING):
            incident.back_since = incident.back_since or incident.num_rows
            if self._is_back(incident):
                return Ruling(found=found, is_over=True)
        else:
            incident.back_since = None
        if found.incident_class is IncidentClass.LINGERING and incident.facts.level:
            incident.settled_since = incident.settled_since or incident.num_rows
            if self._has_settled(incident):
                return Ruling(found=found, is_over=True, is_settled=True)
        else:
            incident.settled_since = None
        return Ruling(found=found if is_sure else None)

    def classify(self, incident: OpenIncident) -> Classified:
        """Return the class that follows from what was measured last."""
        return classify(incident.facts)

    def judge_missing(self, incident: OpenIncident) -> Ruling:
        """Close an incident after as many records without a loss as it may last."""
        if incident.missing > MISSING_RECORDS:
            return Ruling(is_over=True)
        return Ruling(found=self.classify(incident)) if incident.has_overflowed else GOES_ON

    def at_end(self, incident: OpenIncident) -> Classified:
        """Return the class at the end of the log, by the facts at its last record.

        What does not pass must be clear, or the last look must have seen such a thing too: where
        losses are NaN now and then, "dead" and "lingering" take turns.
        """
        found = self.classify(incident)
        is_sure = found.certainty >= SURE or incident.seen in _HELD
        return found if is_sure or found.incident_class not in _HELD else OPEN

    def end_of(self, incident: OpenIncident, *, is_settled: bool) -> Moment:
        """Return the record at which an incident that is over ended."""
        if is_settled:
            return incident.last
        if incident.incident_class is IncidentClass.KEPT_OUT:
            kept_out = [row.moment for row in incident.rows if row.is_kept_out]
            return kept_out[-1] if kept_out else incident.last_alarm
        if incident.incident_class is not IncidentClass.RECOVERED:
            return incident.last_alarm
        return back_at(incident.past.reference, incident.rows) or incident.last

    def history_after(self, incident: OpenIncident, *, is_settled: bool) -> list[Row]:
        """Return the records of a closed incident that are usual, for the history."""
        rows = incident.rows
        if is_settled and incident.settled_since is not None:
            return rows[-(incident.num_rows - incident.settled_since) :]
        if incident.end is None:
            return []
        first = incident.end.tick + 1 if incident.is_loud else incident.onset.tick
        return [row for row in rows if row.tick >= first and row.is_finite]

    def _is_back(self, incident: OpenIncident) -> bool:
        since = incident.back_since
        if since is None or incident.num_rows - since < CLOSE_RECORDS:
            return False
        if incident.incident_class in (IncidentClass.RECOVERED, IncidentClass.RESTORED):
            is_sure = incident.num_rows >= SHORTEST and _is_ordinary(incident)
            return is_sure or min(incident.num_rows - since, incident.calm) >= DOUBT_RECORDS
        return incident.calm >= max(MIN_CALM, CALM_STEPS / incident.past.stride)

    def _has_settled(self, incident: OpenIncident) -> bool:
        since = incident.settled_since
        if since is None or incident.incident_class is not IncidentClass.LINGERING:
            return False
        records = incident.num_rows - since
        is_due = records >= max(SETTLE_RECORDS, SETTLE_STEPS / incident.past.stride)
        return is_due and not _still_rises(incident, records)


def _is_at_once(found: Classified, incident: OpenIncident) -> bool:
    """Return whether a class is said at the first look that sees it."""
    if found.incident_class in (IncidentClass.DEAD, IncidentClass.RESTORED):
        return True
    is_new = incident.incident_class in (IncidentClass.OPEN, IncidentClass.SILENT)
    return is_new and found.incident_class not in _HELD


def _still_rises(incident: OpenIncident, records: int) -> bool:
    """Return whether the loss goes on rising on what seems its new level."""
    level = incident.facts.level
    losses = Losses.of(incident.rows[-records:]).loss
    if level is None or len(losses) < SETTLE_RECORDS:
        return False
    first, second = np.array_split(losses, 2)
    error = level.noise * float(np.sqrt(4 / len(losses)))
    rise = midmean(second) - midmean(first)
    return rise > max(RISES_ERRORS * error, RISES_SHARE * level.now)


def _is_ordinary(incident: OpenIncident) -> bool:
    """Return whether the loss is back by more than the benefit of the doubt."""
    level = incident.facts.level
    return level is None or level.z <= 1.0


class PauseRules(IncidentRules):
    """The rules for lost time: slow and stalled steps, which say nothing of the loss."""

    def begin(
        self, before: Sequence[Row], onset: Row, history: History, meaning: LossMeaning
    ) -> Past:
        """Return a past without a level: a slow step touches none."""
        nothing = Reference(records=0, onset_step=onset.step, first_step=0, start=None)
        return Past(reference=nothing, is_measure=False, stride=stride_of(before))

    def classify(self, incident: OpenIncident) -> Classified:
        """Return silent, whatever the loss does: an incident of its own tells that."""
        return Classified(incident_class=IncidentClass.SILENT, certainty=0.9)
