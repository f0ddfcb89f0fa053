"""IncidentTracker: the incident state machine. What differs between rule sets is in ClosingRules.

             alarm                  the loss is back
    quiet ----------> open --------------------------------> closed: hard batch, recoverable,
                       |  ^                                  or lingering if it took long
       8, 32 records:  |  |  alarm soon after                  |
       outlook         |  +------------------------------------+
                       v  not back in time
                     classified: divergent if non-finite or rising, else lingering
                       v  settled
                     closed: a finite level becomes the new normal

An incident that opened without the loss is silent until an alarm, or the loss itself, says
otherwise. Only records with a loss count; one that is not finite does not if its step was kept out
of the weights. While an incident is open nothing enters the history.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.events import NOT_APPLIED
from trimtab.core.findings import HARMLESS, NOT_RESTORED, Finding, Severity, Symptom
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Moment, Transition
from trimtab.core.signals import DISCARDED, LOSS
from trimtab.detect.loss.meaning import LossMeaning
from trimtab.detect.state.hard_limits import SYMPTOMS
from trimtab.explain.incidents.closing import ClosingRules, Ruling
from trimtab.explain.incidents.open_incident import OpenIncident, RunStart, is_only_nonfinite

MAX_NOT_APPLIED = 64
"""Steps not applied that are remembered, and records up to which the record of one comes after its
event. Chosen: it comes `live.lag_steps` later, 2 by default; a restart may repeat a step later."""

KEPT_OUT_RECORDS = 100
"""Records from a step that was kept out to the next one, or from the end of the incident that it
was, up to which both are one incident. Source: the time in which a run may recover."""

_STATE_NORMS = tuple(name for name, found in SYMPTOMS.items() if found is Symptom.NONFINITE_NORM)


class IncidentTracker:
    """Groups findings into incidents, record by record."""

    def __init__(self, rules: ClosingRules) -> None:
        self._rules = rules
        self._recent: deque[Moment] = deque(maxlen=rules.history_records)
        """The history: the latest quiet records with a loss."""
        self._warnings: deque[int] = deque(maxlen=rules.lead_records)
        """Ticks of the latest warnings."""
        self._open: OpenIncident | None = None
        self._closed: OpenIncident | None = None
        """The latest closed one, for as long as it can be reopened."""
        self._since_closed = 0
        self._not_applied: deque[tuple[int, int]] = deque(maxlen=MAX_NOT_APPLIED)
        """Tick and step of the latest steps that the loop itself did not apply."""
        self.num_incidents = 0
        """Incidents so far; the next one has the number after it."""
        self._start = RunStart()
        self._meaning = LossMeaning(rules.objective)

    def update(self, block: Block, findings: Sequence[Finding]) -> list[IncidentChange]:
        """Process the next records and the findings among them; return what changed."""
        self._meaning.observe_many(block)
        self._not_applied.extend((e.tick, e.step) for e in block.events if e.kind == NOT_APPLIED)
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
        row = 0
        while row < len(block):
            if self._open is None:
                # Nothing can happen before the next finding: skip to it.
                following = bisect_left(stops, row)
                until = stops[following] if following < len(stops) else len(block)
                self._remember(block, row, until)
                row = until
            if row < len(block):
                if row in warnings:
                    self._warnings.append(warnings[row])
                changes += self._step(block, row, alarms.get(row, []))
                row += 1
        return changes

    def finish(self) -> list[IncidentChange]:
        """Classify what is open at the end of the log, as far as the records allow."""
        incident = self._open
        if incident is None:
            return []
        return self._classify(incident, self._rules.class_at_end(incident))

    @property
    def open_incident(self) -> Incident | None:
        return self._open.snapshot() if self._open else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": [[moment.step, moment.tick, moment.loss] for moment in self._recent],
            "warnings": list(self._warnings),
            "open": self._open.state_dict() if self._open else None,
            "closed": self._closed.state_dict() if self._closed else None,
            "since_closed": self._since_closed,
            "not_applied": list(self._not_applied),
            "count": self.num_incidents,
            "start": self._start.state_dict(),
            "meaning": self._meaning.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        moments = (Moment(step=step, tick=tick, loss=loss) for step, tick, loss in state["recent"])
        self._recent = deque(moments, maxlen=self._recent.maxlen)
        self._warnings = deque(state["warnings"], maxlen=self._warnings.maxlen)
        self._open, self._closed = (
            OpenIncident.from_state(state[part]) if state[part] else None
            for part in ("open", "closed")
        )
        self._since_closed = int(state["since_closed"])
        pairs = ((tick, step) for tick, step in state["not_applied"])
        self._not_applied = deque(pairs, maxlen=MAX_NOT_APPLIED)
        self.num_incidents = int(state["count"])
        self._start.load_state_dict(state["start"])
        self._meaning.load_state_dict(state["meaning"])

    def _remember(self, block: Block, first: int, last: int) -> None:
        """Add quiet records to the history."""
        if last - first == 1:  # a live step
            self._remember_one(_moment(block, first))
            return
        rows = first + np.flatnonzero(block.column(LOSS).present[first:last])
        self._since_closed += len(rows)
        for row in rows:
            if self._start.is_known:  # after the first records of a run
                break
            self._start.observe(_moment(block, int(row)))
        kept = rows[-self._rules.history_records :]
        axes = (block.step, block.tick, block.column(LOSS).values)
        for step, tick, loss in zip(*(axis[kept].tolist() for axis in axes), strict=True):
            self._recent.append(Moment(step=step, tick=tick, loss=loss))

    def _remember_one(self, moment: Moment) -> None:
        if moment.loss is not None:
            self._recent.append(moment)
            self._since_closed += 1
            if not self._start.is_known:
                self._start.observe(moment)

    def _step(self, block: Block, row: int, alarms: list[Finding]) -> list[IncidentChange]:
        """Process a record that has a finding, or that comes while an incident is open."""
        changes = []
        moment, is_kept_out = _moment(block, row), self._is_kept_out(block, row)
        was_spared = is_kept_out and is_only_nonfinite(alarms)
        incident = self._open
        closed = self._closed
        if incident is None and alarms and closed and self._is_echo(closed, alarms, was_spared):
            # Counted, but not news: it would open a second incident for one event.
            closed.num_findings += len(alarms)
            alarms = []
        if incident is None and not alarms:
            self._remember_one(moment)
            return []
        is_news, transition = True, Transition.WORSENED
        if incident is None:
            incident, transition = self._begin(moment, alarms)
        else:
            is_news = incident.join(alarms, is_loud=self._is_loud(alarms))
        if transition is Transition.OPENED:
            incident.was_kept_out = was_spared
        elif not HARMLESS.issuperset(alarm.symptom for alarm in alarms):
            incident.was_kept_out = incident.was_kept_out and was_spared
        norms = [norm for name in _STATE_NORMS if (norm := _value(block, row, name)) is not None]
        if norms:
            incident.has_finite_state = all(map(math.isfinite, norms))
        if is_news:
            changes.append(incident.change(transition, moment.tick))
        if moment.loss is None:
            incident.missing += 1
            ruling = self._rules.rule_without_loss(incident)
        elif is_kept_out and not math.isfinite(moment.loss):
            incident.note(moment)
            ruling = Ruling()
        else:
            self._observe(incident, moment)
            ruling = self._rules.rule(incident, is_calm=not alarms)
        return changes + self._apply(incident, ruling)

    def _apply(self, incident: OpenIncident, ruling: Ruling) -> list[IncidentChange]:
        """Forecast, classify or close an incident, as the rules say."""
        changes = []
        tick = incident.last.tick
        if ruling.outlook is not None:
            incident.outlook = ruling.outlook
            changes.append(incident.change(Transition.FORECAST, tick))
        changes += self._classify(incident, ruling.incident_class)
        if ruling.closed_as is None:
            return changes
        if ruling.new_normal:
            # An incident cannot alarm for ever: its level becomes the new normal.
            incident.course.returned = None
            self._recent.clear()
            self._recent.extend(ruling.new_normal)
        if ruling.new_level is not None:
            incident.new_level = ruling.new_level
            changes.append(incident.change(Transition.REBASELINED, tick))
        return changes + self._close(incident, ruling.closed_as)

    def _begin(self, moment: Moment, alarms: list[Finding]) -> tuple[OpenIncident, Transition]:
        """Open a new incident, or reopen the latest one if it has only just been closed."""
        closed, is_loud = self._closed, self._is_loud(alarms)
        if closed and self._rules.may_reopen(closed, self._since_closed):
            closed.reopen(alarms, self._rules.class_if_reopened(closed), is_loud=is_loud)
            self._open, self._closed = closed, None
            return closed, Transition.REOPENED
        self.num_incidents += 1
        before = list(self._recent)
        first = self._first_sign(moment, alarms, before)
        before, led_up = before[:first], before[first:]
        is_surrogate = self._meaning.is_surrogate(moment.tick)
        incident = OpenIncident.begin(
            self.num_incidents,
            led_up[0] if led_up else moment,
            self._rules.start(before, has_trend=not is_surrogate),
            alarms,
            is_loud=is_loud,
        )
        incident.is_surrogate = is_surrogate
        incident.has_direction = self._meaning.has_direction(incident.onset.tick)
        incident.start_loss = self._meaning.start(moment.tick)
        for earlier in led_up:
            self._observe(incident, earlier, is_waiting=False)
        self._recent.clear()
        self._recent.extend(before)
        self._open, self._closed = incident, None
        return incident, Transition.OPENED

    def _observe(self, incident: OpenIncident, moment: Moment, *, is_waiting: bool = True) -> None:
        incident.observe(moment, is_waiting=is_waiting)
        if self._start.is_repeated_by(incident.since_peak):
            incident.started_again = True
        self._rules.follow(incident)

    def _is_echo(self, closed: OpenIncident, alarms: list[Finding], was_spared: bool) -> bool:
        if was_spared and closed.was_kept_out and self._since_closed <= KEPT_OUT_RECORDS:
            self._since_closed = 0
            return True
        return self._rules.is_echo(closed, alarms)

    def _is_kept_out(self, block: Block, row: int) -> bool:
        """Return whether the step of a record was not applied to the weights."""
        step, tick = block.step.item(row), block.tick.item(row)
        return _value(block, row, DISCARDED) == 1.0 or any(
            step == not_applied and 0 <= tick - written < MAX_NOT_APPLIED
            for written, not_applied in self._not_applied
        )

    def _is_loud(self, alarms: Sequence[Finding]) -> bool:
        return any(self._rules.is_loud(alarm) for alarm in alarms)

    def _first_sign(
        self, moment: Moment, alarms: Sequence[Finding], before: Sequence[Moment]
    ) -> int:
        """Return the index among the records before at which the incident began."""
        lead = self._rules.lead_records
        ticks = [earlier.tick for earlier in before]
        onsets = [alarm.onset_tick for alarm in alarms if alarm.onset_tick is not None]
        place = bisect_left(ticks, min(onsets, default=moment.tick))
        if any(alarm.symptom in NOT_RESTORED for alarm in alarms):
            return place  # it began with the resume
        for warning in reversed(self._warnings):
            earlier = bisect_left(ticks, warning)
            if place - lead <= earlier < place:
                place = earlier
        return place

    def _classify(
        self, incident: OpenIncident, incident_class: IncidentClass | None
    ) -> list[IncidentChange]:
        if incident_class is None or incident_class is incident.incident_class:
            return []
        incident.incident_class = incident_class
        return [incident.change(Transition.CLASSIFIED, incident.last.tick)]

    def _close(self, incident: OpenIncident, incident_class: IncidentClass) -> list[IncidentChange]:
        changes = self._classify(incident, incident_class)
        returned = incident.course.returned
        incident.end = returned or incident.last
        if returned is not None:  # the losses after it were usual again
            self._recent.extend(m for m in incident.course.tail if m.tick > returned.tick)
        self._open, self._closed, self._since_closed = None, incident, 0
        changes.append(incident.change(Transition.CLOSED, incident.last.tick))
        return changes


def _moment(block: Block, row: int) -> Moment:
    return Moment(
        step=block.step.item(row), tick=block.tick.item(row), loss=_value(block, row, LOSS)
    )


def _value(block: Block, row: int, signal: str) -> float | None:
    """Return the value of a signal in a row; None if it was not recorded there."""
    column = block.columns.get(signal)
    return column.values.item(row) if column is not None and column.present.item(row) else None
