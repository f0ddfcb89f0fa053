"""IncidentTracker: the incident state machine, and its only owner.

             alarm                  back within mean + 0.5 sigma
    quiet ----------> open --------------------------------------> closed (recoverable)
                       |  ^                                          |
       50 records, not |  |  alarm within 16 records                 |
       back            v  +------------------------------------------+
                     classed: divergent if non-finite or still rising, else lingering.
                     A finite one is closed and its level becomes the new normal; a
                     non-finite one stays open until a finite loss is seen.

An incident that opened without a jump of the loss (a slow rise, a norm that is not finite) is
silent from the start and stays so. Only records with a loss count. While an incident is open
nothing enters the baseline.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

from trimtab.core.block import Block, Column
from trimtab.core.config import TextbookConfig
from trimtab.core.findings import Finding, Severity
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Moment, Transition
from trimtab.core.signals import LOSS
from trimtab.diagnose.incidents.textbook_incident import OpenIncident


class IncidentTracker:
    """Groups findings into incidents as the records pass by."""

    def __init__(self, config: TextbookConfig) -> None:
        self._config = config
        self._baseline: deque[float] = deque(maxlen=config.window)
        self._open: OpenIncident | None = None
        self._closed: OpenIncident | None = None
        """The latest closed one, kept as long as it can be reopened."""
        self._since_closed = 0
        self._count = 0

    def feed(self, block: Block, findings: Sequence[Finding]) -> list[IncidentChange]:
        """Take the next records and what was found among them; return what changed."""
        alarms: dict[int, list[Finding]] = {}
        for finding in findings:
            if finding.severity is Severity.ALARM:
                alarms.setdefault(block.row_of(finding.tick), []).append(finding)
        alarm_rows = sorted(alarms)
        loss = block.column(LOSS)
        changes: list[IncidentChange] = []
        row = 0
        while row < len(block):
            if self._open is None:
                # Nothing can happen before the next alarm: take the quiet stretch in one go.
                following = bisect_left(alarm_rows, row)
                until = alarm_rows[following] if following < len(alarm_rows) else len(block)
                self._pass_quietly(loss[row:until])
                row = until
            if row < len(block):
                moment = Moment(
                    step=int(block.step[row]),
                    tick=int(block.tick[row]),
                    loss=float(loss.values[row]) if loss.present[row] else None,
                )
                changes += self._take(moment, alarms.get(row, []))
                row += 1
        return changes

    def finish(self) -> list[IncidentChange]:
        """The log has ended: class what is open as far as the records allow."""
        if self._open is None or self._open.incident_class is not None:
            return []
        self._open.incident_class = self._open.class_at_the_end()
        if self._open.incident_class is None:
            return []
        return [self._open.change(Transition.CLASSED, self._open.last.tick)]

    @property
    def open_incident(self) -> Incident | None:
        """The incident that is open now."""
        return self._open.snapshot() if self._open else None

    def state_dict(self) -> dict[str, Any]:
        """All that the tracker remembers."""
        return {
            "baseline": list(self._baseline),
            "open": self._open.state_dict() if self._open else None,
            "closed": self._closed.state_dict() if self._closed else None,
            "since_closed": self._since_closed,
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the tracker that `state_dict` described."""
        self._baseline = deque(state["baseline"], maxlen=self._config.window)
        self._open, self._closed = (
            OpenIncident.from_state(state[part], self._config) if state[part] else None
            for part in ("open", "closed")
        )
        self._since_closed = int(state["since_closed"])
        self._count = int(state["count"])

    def _pass_quietly(self, loss: Column) -> None:
        self._baseline.extend(loss.values[loss.finite][-self._config.window :].tolist())
        self._since_closed += int(loss.present.sum())

    def _take(self, moment: Moment, alarms: list[Finding]) -> list[IncidentChange]:
        """One record while an incident is open, or the one that opens it."""
        changes = []
        incident = self._open
        if incident is None:
            incident, transition = self._begin(moment, alarms)
            changes.append(incident.change(transition, moment.tick))
        elif incident.join(alarms):
            changes.append(incident.change(Transition.WORSENED, moment.tick))
        if moment.loss is None:
            return changes
        incident.see(moment)
        if not alarms and incident.is_back():
            changes += self._settle(incident, incident.class_if_back(), close=True)
        elif incident.is_due():
            # A finite level is taken as the new normal: an incident cannot alarm for ever.
            if incident.is_finite:
                self._baseline.clear()
                self._baseline.extend(incident.tail)
            changes += self._settle(
                incident, incident.class_if_not_back(), close=incident.is_finite
            )
        return changes

    def _begin(self, moment: Moment, alarms: list[Finding]) -> tuple[OpenIncident, Transition]:
        """Open a new incident, or the latest one again if it closed only just now."""
        if self._closed and self._since_closed <= self._config.reopen_records:
            incident, transition = self._closed, Transition.REOPENED
            incident.reopen(alarms)
        else:
            self._count += 1
            incident = OpenIncident.begin(
                self._count, moment, alarms, list(self._baseline), self._config
            )
            transition = Transition.OPENED
        self._open, self._closed = incident, None
        return incident, transition

    def _settle(
        self, incident: OpenIncident, incident_class: IncidentClass, *, close: bool
    ) -> list[IncidentChange]:
        changes = []
        if incident.incident_class is not incident_class:
            incident.incident_class = incident_class
            changes.append(incident.change(Transition.CLASSED, incident.last.tick))
        if close:
            incident.end = incident.last
            self._open, self._closed, self._since_closed = None, incident, 0
            changes.append(incident.change(Transition.CLOSED, incident.last.tick))
        return changes
