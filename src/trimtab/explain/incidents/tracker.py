"""IncidentTracker: groups findings into incidents, record by record.

             alarm                      ordinary at two looks
    quiet ----------> open ----------------------------------> closed
                       |  ^                                      |
                 looks |  |  alarm soon after                    |
                       |  +--------------------------------------+
                       v
                   the class that two looks in a row agree on
                       |
                       v  the new level has lasted: it is the new normal
                     closed

What differs between rule sets is in IncidentRules. Slow and stalled steps are incidents of their
own beside those about numbers. While an incident about numbers is open nothing enters the history.
"""

import dataclasses
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

from trimtab.core.block import Block
from trimtab.core.events import UNDO, UNDO_OUTCOME
from trimtab.core.findings import HARMLESS, NOT_RESTORED, Finding, Severity, Symptom
from trimtab.core.incident_facts import Facts
from trimtab.core.incidents import Incident, IncidentChange, Moment, Transition
from trimtab.core.signals import EVAL_LOSS
from trimtab.detect.loss.meaning import LossMeaning
from trimtab.detect.state.hard_limits import SYMPTOMS, nonfinite_rows
from trimtab.explain.incidents.history import History, value_of
from trimtab.explain.incidents.open_incident import (
    MAX_EVALUATIONS,
    OpenIncident,
)
from trimtab.explain.incidents.rules import IncidentRules, PauseRules, Ruling
from trimtab.explain.verdict.rows import Row

MAX_UNDOS = 64
"""Undos and their outcomes that are remembered."""

NEAR_STEPS = 16
"""An undo may come this many steps before the onset of its incident. Source: the margin with which
onsets are dated."""

_STATE_NORMS = tuple(name for name, found in SYMPTOMS.items() if found is Symptom.NONFINITE_NORM)


class IncidentTracker:
    """Groups findings into incidents, record by record."""

    def __init__(self, rules: IncidentRules) -> None:
        self._rules = rules
        self._pause_rules = PauseRules()
        self._history = History(rules.history_records)
        self._meaning = LossMeaning(rules.objective)
        self._warnings: deque[int] = deque(maxlen=rules.lead_records)
        """Ticks of the latest warnings."""
        self._undos: list[tuple[int, int, int]] = []
        """Tick, step and updates lost of each undo; of one that did not help, -1 updates."""
        self._open: OpenIncident | None = None
        self._closed: OpenIncident | None = None
        """The latest closed one, for as long as it can be reopened."""
        self._since_closed = 0
        self._pause: OpenIncident | None = None
        """The open incident about lost time."""
        self.num_incidents = 0
        """Incidents so far; the next one has the number after it."""

    def update(self, block: Block, findings: Sequence[Finding]) -> list[IncidentChange]:
        """Process the next records and the findings among them; return what changed."""
        self._meaning.observe(block)
        self._history.add_events(block)
        self._undos += _undos_of(block)
        alarms: dict[int, list[Finding]] = {}
        warnings: dict[int, int] = {}
        for finding in findings:
            if finding.severity is Severity.ALARM:
                alarms.setdefault(block.row_of(finding.tick), []).append(finding)
            # A slow step says nothing about the next loss.
            elif finding.severity is Severity.WARN and finding.symptom not in HARMLESS:
                warnings[block.row_of(finding.tick)] = finding.tick
        stops = sorted({*alarms, *warnings})
        changes: list[IncidentChange] = []
        at = 0
        while at < len(block):
            if self._open is None and self._pause is None:
                # Nothing can happen before the next finding: skip to it.
                following = bisect_left(stops, at)
                until = stops[following] if following < len(stops) else len(block)
                if until > at:
                    self._since_closed += self._history.add(block, at, until)
                at = until
            if at < len(block):
                if at in warnings:
                    self._warnings.append(warnings[at])
                changes += self._step(block, at, alarms.get(at, []))
                at += 1
        self._undos = self._undos[-MAX_UNDOS:]
        return changes

    def finish(self) -> list[IncidentChange]:
        """Classify what is open at the end of the log, by the facts at its last record."""
        return [
            change
            for incident in (self._open, self._pause)
            if incident is not None
            for change in self._classify_at_end(incident)
        ]

    @property
    def open_incidents(self) -> list[Incident]:
        """The incidents that are open, as they stand."""
        return [one.snapshot() for one in (self._open, self._pause) if one is not None]

    def state_dict(self) -> dict[str, Any]:
        parts = {"open": self._open, "closed": self._closed, "pause": self._pause}
        return {
            **{name: part.state_dict() if part else None for name, part in parts.items()},
            "history": self._history.state_dict(),
            "warnings": list(self._warnings),
            "undos": list(self._undos),
            "since_closed": self._since_closed,
            "count": self.num_incidents,
            "meaning": self._meaning.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open, self._closed, self._pause = (
            OpenIncident.from_state(state[part]) if state[part] else None
            for part in ("open", "closed", "pause")
        )
        self._history.load_state_dict(state["history"])
        self._warnings = deque(state["warnings"], maxlen=self._warnings.maxlen)
        self._undos = [tuple(undo) for undo in state["undos"]]
        self._since_closed = int(state["since_closed"])
        self.num_incidents = int(state["count"])
        self._meaning.load_state_dict(state["meaning"])

    def _step(self, block: Block, at: int, alarms: list[Finding]) -> list[IncidentChange]:
        """Process a record that has a finding, or that comes while an incident is open."""
        row = self._history.note(block, at)
        moment = row.moment if row else _moment(block, at)
        pauses = [alarm for alarm in alarms if alarm.symptom in HARMLESS]
        return [
            *self._step_pause(row, moment, pauses),
            *self._step_numbers(block, at, row, moment, [a for a in alarms if a not in pauses]),
        ]

    def _step_pause(
        self, row: Row | None, moment: Moment, alarms: list[Finding]
    ) -> list[IncidentChange]:
        incident, changes = self._pause, []
        if alarms and incident is None:
            onset = row or Row(moment.tick, moment.step, None)
            incident = self._pause = self._new(onset, self._pause_rules, [], moment)
            incident.join(alarms, is_loud=False, is_kept_out=False)
            changes = [(incident, Transition.OPENED)]
        elif incident is None:
            return []
        elif alarms and incident.join(alarms, is_loud=False, is_kept_out=False):
            changes = [(incident, Transition.WORSENED)]
        if alarms:
            incident.last_alarm = moment
        incident.calm += not alarms
        ruling = self._observe(incident, row, self._pause_rules, moment=moment, is_calm=not alarms)
        said = [one.change(transition, moment.tick) for one, transition in changes]
        if ruling.is_over:
            self._pause = None
        return said + self._apply(incident, ruling, self._pause_rules, moment.tick)

    def _step_numbers(
        self, block: Block, at: int, row: Row | None, moment: Moment, alarms: list[Finding]
    ) -> list[IncidentChange]:
        incident, closed = self._open, self._closed
        if incident is None and alarms and closed and self._rules.is_echo(closed, alarms):
            # Counted, but not news: it would open a second incident for one event.
            closed.num_findings += len(alarms)
            alarms = []
        held_out = value_of(block, at, EVAL_LOSS)
        given_up: list[IncidentChange] = []
        if incident is not None and self._has_gone_back(incident, block, at):
            given_up, incident = self._give_up(incident), None
        elif incident is not None and self._rules.is_apart(incident, alarms, row):
            given_up, incident = self._part_with(incident), None
        if incident is None and not alarms:
            self._remember(row, held_out)
            return given_up
        onset = row or Row(moment.tick, moment.step, None)
        is_loud = any(self._rules.is_loud(alarm) for alarm in alarms)
        is_kept_out = bool(row and row.is_kept_out) and _is_of_this_step(alarms)
        news: Transition | None = None
        if incident is None:
            incident, news = self._begin(onset, alarms, is_loud=is_loud)
            incident.attempt = block.attempt.item(at)
        is_new = bool(alarms) and incident.join(alarms, is_loud=is_loud, is_kept_out=is_kept_out)
        if news is None and is_new:
            news = Transition.WORSENED
        incident.calm += not alarms
        if alarms:
            incident.last_alarm = moment
        if held_out is not None:
            incident.evaluations = [*incident.evaluations[1 - MAX_EVALUATIONS :], held_out]
        norms = {name: value_of(block, at, name) for name in _STATE_NORMS}
        known = {name: norm for name, norm in norms.items() if norm is not None}
        if known:
            incident.state_step = moment.step
            incident.has_finite_state = not any(
                nonfinite_rows(block[at : at + 1], name)[0]
                for name, norm in known.items()
                if not math.isfinite(norm)
            )
        ruling = self._observe(
            incident, row, self._rules, moment=moment, is_calm=not alarms, news=news
        )
        changes = [*given_up, *([incident.change(news, moment.tick)] if news else [])]
        if ruling.is_over:
            self._open, self._closed, self._since_closed = None, incident, 0
        changes += self._apply(incident, ruling, self._rules, moment.tick)
        if ruling.is_over:
            self._take_back(incident, is_settled=ruling.is_settled)
        return changes

    def _observe(
        self,
        incident: OpenIncident,
        row: Row | None,
        rules: IncidentRules,
        *,
        moment: Moment,
        is_calm: bool,
        news: Transition | None = None,
    ) -> Ruling:
        """Add a record to an incident; return what follows from it."""
        if row is None:
            incident.miss(moment)
            if incident.has_overflowed:
                self._measure(incident)
            return rules.judge_missing(incident)
        incident.observe(row)
        if self._history.start.is_repeated_by(incident.since_peak):
            incident.started_again = True
        is_look = incident.is_due()
        if is_look or news is not None:
            self._measure(incident)
        if news is Transition.OPENED:  # no look: it is as high as it is by the alarm's choice
            rules.open(incident)
            is_look = False
        return rules.judge(incident, is_look=is_look, is_calm=is_calm)

    def _apply(
        self, incident: OpenIncident, ruling: Ruling, rules: IncidentRules, tick: int
    ) -> list[IncidentChange]:
        """Classify or close an incident, as the rules say."""
        changes = []
        if ruling.is_over:
            self._measure(incident)
        if ruling.found is not None:
            is_new = ruling.found.incident_class is not incident.incident_class
            incident.found = ruling.found
            if is_new:
                changes.append(incident.change(Transition.CLASSIFIED, tick))
        if ruling.is_over:
            incident.end = rules.end_of(incident, is_settled=ruling.is_settled)
            changes.append(incident.change(Transition.CLOSED, tick))
        return changes

    def _begin(
        self, row: Row, alarms: list[Finding], *, is_loud: bool
    ) -> tuple[OpenIncident, Transition]:
        """Open a new incident, or reopen the latest one if it has only just been closed."""
        closed, self._closed = self._closed, None
        if closed and self._rules.may_reopen(closed, self._since_closed):
            rows = list(self._history.rows)
            for earlier in rows:
                if earlier.tick > closed.last.tick:
                    closed.observe(earlier)
            closed.end, closed.back_since, closed.settled_since = None, None, None
            closed.num_reopened += 1
            closed.rows_before = closed.num_rows
            self._history.rows.clear()
            self._history.rows.extend(row for row in rows if row.tick < closed.onset.tick)
            self._open = closed
            return closed, Transition.REOPENED
        rows = [*self._history.rows, row]
        first = self._first_sign(row.tick, alarms, rows)
        began_with_resume = any(alarm.symptom in NOT_RESTORED for alarm in alarms)
        may_have_risen = is_loud or any(a.symptom is Symptom.GRADIENT_SPIKE for a in alarms)
        if may_have_risen and not row.is_kept_out and not began_with_resume:
            first = self._rules.date_onset(rows, first)
        # What was another incident does not belong to this one.
        first = max(first, sum(earlier.tick <= self._history.last_end for earlier in rows[:-1]))
        before, led_up = rows[:first], rows[first:]
        incident = self._new(led_up[0], self._rules, before, row.moment)
        for earlier in led_up[:-1]:
            incident.observe(earlier)
        self._begin_with_run(incident, alarms)
        incident.rows_before = incident.num_rows
        self._history.rows.clear()
        self._history.rows.extend(before)
        self._open = incident
        return incident, Transition.OPENED

    def _begin_with_run(self, incident: OpenIncident, alarms: list[Finding]) -> None:
        """Date a run that has never learnt to its first record, which is remembered no more."""
        first = self._history.first
        if first is None or first[0] >= incident.onset.tick or incident.past.reference.records:
            return
        if any(a.symptom is Symptom.NO_LEARNING and a.onset_tick == first[0] for a in alarms):
            incident.num_rows += self._history.num_rows - len(self._history.rows)
            incident.onset = Moment(tick=first[0], step=first[1], loss=first[2])

    def _new(
        self, onset: Row, rules: IncidentRules, before: Sequence[Row], moment: Moment
    ) -> OpenIncident:
        self.num_incidents += 1
        return OpenIncident(
            number=self.num_incidents,
            past=rules.begin(before, onset, self._history, self._meaning),
            onset=onset.moment,
            peak=onset.moment,
            last=onset.moment,
            last_alarm=moment,
            facts=Facts(),
        )

    def _first_sign(self, tick: int, alarms: Sequence[Finding], rows: Sequence[Row]) -> int:
        """Return the index of the row at which the incident began, by its findings."""
        lead = self._rules.lead_records
        ticks = [earlier.tick for earlier in rows]
        onsets = [alarm.onset_tick for alarm in alarms if alarm.onset_tick is not None]
        first = bisect_left(ticks, min([tick, *onsets]))
        if any(alarm.symptom in NOT_RESTORED for alarm in alarms):
            return first  # it began with the resume
        for warning in reversed(self._warnings):
            earlier = bisect_left(ticks, warning)
            if first - lead <= earlier < first:
                first = earlier
        return first

    def _has_gone_back(self, incident: OpenIncident, block: Block, at: int) -> bool:
        """Return whether the run was started again from before an incident."""
        is_new = block.attempt.item(at) != incident.attempt
        return is_new and block.step.item(at) < incident.onset.step

    def _give_up(self, incident: OpenIncident) -> list[IncidentChange]:
        """Close an incident that a restart has left behind, with the class that it has."""
        changes = self._classify_at_end(incident)
        incident.facts = dataclasses.replace(incident.facts, was_left_behind=True)
        incident.end = incident.last
        self._open, self._closed, self._since_closed = None, None, 0
        return [*changes, incident.change(Transition.CLOSED, incident.last.tick)]

    def _part_with(self, incident: OpenIncident) -> list[IncidentChange]:
        """Close an incident that is all but over, because another one begins."""
        changes = self._classify_at_end(incident)
        incident.end = self._rules.end_of(incident, is_settled=False)
        changes.append(incident.change(Transition.CLOSED, incident.last.tick))
        self._open, self._closed = None, None
        self._take_back(incident, is_settled=False)
        return changes

    def _measure(self, incident: OpenIncident) -> None:
        first, last = incident.onset.step - NEAR_STEPS, incident.last.tick
        # A block may hold undos that are still to come.
        known = [undo for undo in self._undos if undo[0] <= last][-MAX_UNDOS:]
        near = [(step, updates) for _, step, updates in known if step >= first]
        undone = [(step, updates) for step, updates in near if updates > 0]
        incident.measure(
            sum(updates for _, updates in undone),
            has_undo_failed=bool(near) and near[-1][1] < 0,
            undone_at=undone[-1][0] if undone else None,
        )

    def _classify_at_end(self, incident: OpenIncident) -> list[IncidentChange]:
        rules = self._pause_rules if incident is self._pause else self._rules
        self._measure(incident)
        found, before = rules.at_end(incident), incident.incident_class
        incident.found = found
        if found.incident_class is before:
            return []
        return [incident.change(Transition.CLASSIFIED, incident.last.tick)]

    def _remember(self, row: Row | None, held_out: float | None) -> None:
        """Add a record without an incident to the history."""
        if row is not None:
            self._history.first = self._history.first or row[:3]
            self._history.num_rows += 1
            self._history.rows.append(row)
            self._since_closed += 1
        if held_out is not None:
            self._history.evaluations.append(held_out)

    def _take_back(self, incident: OpenIncident, *, is_settled: bool) -> None:
        """Add the records after an incident to the history, or those of its new level."""
        history = self._history
        history.evaluations.extend(incident.evaluations)
        if incident.end is not None:
            history.last_end = incident.end.tick
        if is_settled:
            history.rows.clear()
        history.rows.extend(self._rules.history_after(incident, is_settled=is_settled))
        if incident.is_loud and not is_settled:
            history.longest_return = max(history.longest_return, incident.snapshot().records)


def _undos_of(block: Block) -> list[tuple[int, int, int]]:
    """Return tick, step and updates lost of each undo; -1 updates for one that did not help."""
    found = []
    for event in block.events:
        lost = event.facts.get("updates_lost")
        is_for_harm = not event.facts.get("is_ordered") or "gain" in event.facts
        if event.kind == UNDO and is_for_harm and isinstance(lost, int):
            found.append((event.tick, event.step, max(lost, 1)))
        told = event.kind == UNDO_OUTCOME and event.facts.get("showed") is not False
        if told and event.facts.get("helped") is False:
            found.append((event.tick, event.step, -1))
    return found


def _is_of_this_step(alarms: Sequence[Finding]) -> bool:
    """Return whether alarms are about nothing but the step that they were raised at."""
    return all(alarm.onset_tick in (None, alarm.tick) for alarm in alarms)


def _moment(block: Block, at: int) -> Moment:
    return Moment(step=block.step.item(at), tick=block.tick.item(at), loss=None)
