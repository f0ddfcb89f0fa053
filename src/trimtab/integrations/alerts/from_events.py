"""The alerts of a run, from the events of its journal and from its status."""

import time
from typing import Any

from trimtab.core.block import Event
from trimtab.core.incidents import IncidentClass, Transition
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.core.sink import RUN_STATUS, RunStatus
from trimtab.integrations.alerts.alert import Alert, AlertState, Level
from trimtab.integrations.sinks.incident_events import IncidentNews

_BAD = (IncidentClass.DIVERGENT, IncidentClass.LINGERING)
_TITLES = {
    Transition.REOPENED: "came back",
    Transition.WORSENED: "got worse",
    Transition.CLOSED: "is over",
    Transition.ROLLED_BACK: "was rolled back",
}


def incident_alert(run: str, news: IncidentNews, link: str = "") -> Alert | None:
    """The alert of a change of an incident; None if people need not know of it."""
    if not news.is_alarm:
        return None
    if news.transition in (Transition.FORECAST, Transition.REBASELINED):
        return None
    kind = news.incident_class.value if news.incident_class else "class not known yet"
    symptoms = ", ".join(news.symptoms) or "no symptom"
    state = AlertState.OPEN
    if news.is_over:
        state = AlertState.CLOSED
    elif news.transition in (Transition.CLASSIFIED, Transition.WORSENED):
        state = AlertState.CHANGED
    level = Level.ERROR if news.incident_class in _BAD else Level.WARNING
    words = _TITLES.get(news.transition) if news.transition else None
    title = f"incident {news.number}{f' {words}' if words else ''}: {symptoms} at step {news.onset}"
    lines = [f"Class: {kind}."]
    if news.cause:
        lines.append(f"Likely cause: {news.cause}")
    if news.action and not news.is_over:
        lines.append(f"Do: {news.action}")
    return Alert(
        run=run,
        matter=f"incident-{news.number}",
        state=state,
        level=Level.INFO if news.is_over else level,
        title=title,
        text="\n".join(lines),
        step=news.step,
        clock=time.time(),
        facts={"class": kind, "symptoms": symptoms, "onset": news.onset, "cause": news.cause},
        link=link,
    )


def event_alert(run: str, event: Event, link: str = "") -> Alert | None:
    """The alert of an event that is no incident; None if people need not know of it."""
    facts = event.facts
    found: dict[str, Any] | None = None
    if event.kind == ROLLBACK:
        found = {
            "matter": f"rollback-{event.tick}",
            "level": Level.WARNING,
            "title": f"rolled back to step {event.step}",
        }
    elif event.kind == "proposal":
        found = {
            "matter": "proposal",
            "level": Level.ERROR,
            "title": f"waits for approval: {facts.get('action', 'an action')}",
            "text": "Answer with `trimtab approve` or `trimtab decline`.",
        }
    elif event.kind == "answer":
        found = {
            "matter": "proposal",
            "state": AlertState.CLOSED,
            "level": Level.INFO,
            "title": f"{facts.get('answer', 'answered')}: {facts.get('action', 'an action')}",
        }
    elif event.kind == "trimtab failed":
        found = {
            "matter": f"failure-{event.tick}",
            "level": Level.WARNING,
            "title": f"a part of trimtab failed: {facts.get('part', 'unknown')}; training goes on",
        }
    if found is None:
        return None
    common: dict[str, Any] = {
        "state": AlertState.OPEN,
        "step": event.step,
        "clock": time.time(),
        "link": link,
    }
    return Alert(run=run, **(common | found))


def status_alerts(run: str, event: Event, link: str = "") -> list[Alert]:
    """The alerts of a change of the run's status, the closed matter first."""
    if event.kind != RUN_STATUS:
        return []
    now, before = RunStatus(event.facts["status"]), RunStatus(event.facts["before"])
    alerts: list[tuple[RunStatus, AlertState, Level, str]] = []
    if before in (RunStatus.DIED, RunStatus.STALLED) and now is not RunStatus.DIED:
        words = "the run goes on" if now is RunStatus.RUNNING else f"the run has {now.value}"
        alerts.append((before, AlertState.CLOSED, Level.INFO, words))
    if now is RunStatus.DIED:
        words = f"the run died after step {event.step}: its process is gone and has not ended it"
        alerts.append((now, AlertState.OPEN, Level.ERROR, words))
    if now is RunStatus.STALLED:
        words = f"the run has stalled after step {event.step}"
        alerts.append((now, AlertState.OPEN, Level.ERROR, words))
    how = event.facts.get("how")
    if now is RunStatus.ENDED and isinstance(how, str) and how.startswith("raised "):
        words = f"the run ended after step {event.step}: {how}"
        alerts.append((now, AlertState.OPEN, Level.ERROR, words))
    return [
        Alert(
            run=run,
            matter=status.value,
            state=state,
            level=level,
            title=title,
            step=event.step,
            clock=time.time(),
            link=link,
        )
        for status, state, level, title in alerts
    ]
