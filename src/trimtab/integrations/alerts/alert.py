"""Alert: a message to people, and the alerts that follow from the events of a run."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trimtab.core.block import Block, Event
from trimtab.core.events import NOT_UNDONE, ROLLBACK_PROPOSED, UNDO
from trimtab.core.incidents import Transition
from trimtab.core.jsonable import to_jsonable
from trimtab.core.sink import RUN_STATUS, RunStatus
from trimtab.explain.verdict.table import STANDSTILL_STEPS
from trimtab.integrations.incident_news import IncidentNews

DISCARDED = "step discarded"
"""The event of a step that the gate kept from the weights."""

_TITLES = {
    Transition.REOPENED: "opened again",
    Transition.WORSENED: "got worse",
    Transition.CLOSED: "closed",
}


class AlertState(StrEnum):
    """Where the matter stands."""

    OPEN = "open"
    CHANGED = "changed"
    CLOSED = "closed"


class AlertLevel(StrEnum):
    """How bad it is; three levels, as W&B has them."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Return a number for comparing levels; higher is worse."""
        return list(AlertLevel).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One message about one matter; the key stays the same for its whole life."""

    run: str
    """The name of the run directory."""
    matter: str
    """The subject within the run: "incident-3", "died", "stalled"."""
    level: AlertLevel
    title: str
    """One line, without the name of the run."""
    state: AlertState = AlertState.OPEN
    text: str = ""
    """More lines: class, likely cause, what to do."""
    step: int = 0
    clock: float = 0.0
    """Unix time in seconds."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For programs: {"class": "divergent", "onset": 900}."""
    link: str = ""
    """The run in a tracker, or empty."""

    @property
    def key(self) -> str:
        """Return what all messages about one matter share, so that services can join them."""
        return f"trimtab/{self.run}/{self.matter}"

    @property
    def headline(self) -> str:
        return f"{self.run}: {self.title}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything for a program of the user, as a webhook and a command get it."""
        return {
            "version": 1,  # counts up if a field changes its meaning
            "key": self.key,
            "state": self.state.value,
            "level": self.level.value,
            "title": self.headline,
            "text": self.text,
            "run": self.run,
            "step": self.step,
            "time": self.clock,
            "facts": to_jsonable(self.facts),
            "link": self.link,
        }


class RunAlerts:
    """Turns the events of one run into alerts.

    Its state is plain JSON that is kept up to date in place, so that a restart continues with it:
    the number of steps that were discarded in a row, the last of them, and the incidents that were
    dismissed.
    """

    def __init__(self, run: str, link: str, state: dict[str, Any]) -> None:
        self._run, self._link = run, link
        self._state = state
        state.setdefault("count", 0)
        state.setdefault("last", -1)
        state.setdefault("dismissed", [])

    def from_event(self, event: Event) -> list[Alert]:
        """Return the alerts of one event of the run, or of a change of its status."""
        step, facts = event.step, event.facts
        if event.kind == RUN_STATUS:
            return self._from_status(event)
        if event.kind == DISCARDED:
            return self._from_discard(event)
        if event.kind == UNDO:
            matter, title = f"undo-{event.tick}", f"{facts.get('updates_lost')} updates were undone"
            why = str(facts.get("why", ""))
            alert = self._alert(step, matter, AlertLevel.WARNING, title, text=why)
            return [*self._end_discards(step), alert]
        if event.kind == ROLLBACK_PROPOSED:
            matter, title = f"proposal-{event.tick}", "an older state is better"
            text = str(facts.get("sentence", ""))
            return [self._alert(step, matter, AlertLevel.WARNING, title, text=text)]
        if event.kind == NOT_UNDONE:
            matter, title = f"harm-{event.tick}", "the weights were harmed, and nothing is undone"
            text = f"{facts.get('why')}; {facts.get('because')}"
            return [self._alert(step, matter, AlertLevel.ERROR, title, text=text)]
        if event.kind == "trimtab failed":
            part = facts.get("part", "unknown")
            title = f"a part of trimtab failed: {part}; training goes on"
            return [self._alert(step, f"failure-{event.tick}", AlertLevel.WARNING, title)]
        news = IncidentNews.from_event(event)
        return [] if news is None else self._from_incident(news)

    def from_records(self, block: Block) -> list[Alert]:
        """Return the alert that steps are applied again, if these records show it.

        The event of a step follows its record, so the newest step may still be discarded.
        """
        if len(block) and int(block.step[-1]) > self._state["last"] + 1:
            return self._end_discards(int(block.step[-1]))
        return []

    def _from_incident(self, news: IncidentNews) -> list[Alert]:
        """Return the alert of a change of an incident; none if people need not know of it."""
        dismissed, matter = self._state["dismissed"], f"incident-{news.number}"
        if not news.is_alarm or news.number in dismissed:
            return []
        if news.dismissal:
            dismissed.append(news.number)
            title, closed = f"incident {news.number} {news.dismissal}", AlertState.CLOSED
            return [self._alert(news.step, matter, AlertLevel.INFO, title, state=closed)]
        kind = news.incident_class.value
        state = AlertState.OPEN
        level = AlertLevel.ERROR if news.tone == "alarm" else AlertLevel.WARNING
        if news.is_over:
            state, level = AlertState.CLOSED, AlertLevel.INFO
        elif news.transition not in (None, Transition.OPENED, Transition.REOPENED):
            state = AlertState.CHANGED
        words = f" {_TITLES[news.transition]}" if news.transition in _TITLES else ""
        lines = [f"Class: {kind}."]
        if news.cause:
            lines.append(f"Likely cause: {news.cause}")
        if news.action:
            lines.append(f"Do: {news.action}")
        title = f"incident {news.number}{words}: {news.what} at step {news.onset}"
        facts = {"class": kind, "symptoms": ", ".join(news.symptoms), "onset": news.onset}
        facts |= {"cause": news.cause, "action": news.action, "checkpoint": news.checkpoint}
        more = {"state": state, "text": "\n".join(lines), "facts": facts}
        return [self._alert(news.step, matter, level, title, **more)]

    def _from_status(self, event: Event) -> list[Alert]:
        """Return the alerts of a change of the run's status, the closed matter first."""
        now, before = RunStatus(event.facts["status"]), RunStatus(event.facts["before"])
        step, alerts = event.step, []
        if before in (RunStatus.DIED, RunStatus.STALLED) and now is not RunStatus.DIED:
            title = "the run goes on" if now is RunStatus.RUNNING else f"the run has {now.value}"
            closed = AlertState.CLOSED
            alerts.append(self._alert(step, before.value, AlertLevel.INFO, title, state=closed))
        how, title = event.facts.get("how"), ""
        if now is RunStatus.DIED:
            title = (
                f"the run died after step {event.step}: its process is gone and has not ended it"
            )
        elif now is RunStatus.STALLED:
            title = f"the run has stalled after step {event.step}"
        elif now is RunStatus.ENDED and isinstance(how, str) and how.startswith("raised "):
            title = f"the run ended after step {event.step}: {how}"
        if title:
            alerts.append(self._alert(step, now.value, AlertLevel.ERROR, title))
        return alerts

    def _from_discard(self, event: Event) -> list[Alert]:
        """Alert once all steps are discarded: such a run does not train any more."""
        state = self._state
        alerts = [] if event.step == state["last"] + 1 else self._end_discards(event.step)
        state |= {"count": state["count"] + 1, "last": event.step}
        if state["count"] == STANDSTILL_STEPS:
            title = (
                f"{STANDSTILL_STEPS} steps in a row were discarded: the run does not train any more"
            )
            text = " and ".join(map(str, event.facts.get("reasons", ())))
            alerts.append(self._alert(event.step, "discards", AlertLevel.ERROR, title, text=text))
        return alerts

    def _end_discards(self, step: int) -> list[Alert]:
        was_reported = self._state["count"] >= STANDSTILL_STEPS
        self._state["count"] = 0
        if not was_reported:
            return []
        title, closed = "steps are applied again", AlertState.CLOSED
        return [self._alert(step, "discards", AlertLevel.INFO, title, state=closed)]

    def _alert(self, step: int, matter: str, level: AlertLevel, title: str, **more: Any) -> Alert:
        known: dict[str, Any] = {
            "run": self._run,
            "link": self._link,
            "step": step,
            "clock": time.time(),
        }
        return Alert(matter=matter, level=level, title=title, **known, **more)
