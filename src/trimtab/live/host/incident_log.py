"""IncidentLog: what happens to a run is logged as it happens, in one short line each.

WARNING when an incident opens, comes back, or turns out to need more than waiting; INFO for its
end, DEBUG for any other class and for each further symptom.
Silence means health. A line names step, class, likely cause and advice; the whole story is in the
run directory, which the first line of the log has named.
"""

import logging
import queue
import re
import threading
from collections.abc import Callable
from typing import Any

from trimtab.core.actions import ActionKind
from trimtab.core.findings import Severity
from trimtab.core.incidents import Incident, IncidentChange, Transition
from trimtab.explain.diagnosis import Diagnosis
from trimtab.live.shield import log
from trimtab.report.wording import cause_text, short_cause

CALLBACK_SECONDS = 5.0
"""How long closing waits for callbacks that still run."""

MAX_CHARS = 120 - len("trimtab: ")
"""Of a line; chosen, the width of a terminal."""

_WORDS = {
    Transition.OPENED: "opened",
    Transition.REOPENED: "opened again",
    Transition.WORSENED: "got worse",
    Transition.CLASSIFIED: "classified",
    Transition.CLOSED: "closed",
}

_IN_BRACKETS = re.compile(r" \([^)]*\)")
"""What a title explains: `logic NaN (log 0, 0/0, full mask)`. A line has 120 characters."""

_NEWS = frozenset({Transition.OPENED, Transition.WORSENED})


class IncidentLog:
    """Logs changes of incidents and hands them to the user's callback, on a thread of its own."""

    def __init__(self, on_incident: Callable[[Incident], None] | None) -> None:
        self._on_incident = on_incident
        self._waiting: queue.SimpleQueue[Incident | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def report(self, change: IncidentChange, explained: Diagnosis | None) -> None:
        """Log one change and hand the incident to the callback."""
        if change.transition not in _WORDS:
            return
        incident = change.incident
        is_alarm = _is_alarm(incident)
        asks_for_more = explained is not None and explained.action.kind is not ActionKind.WAIT
        is_loud = is_alarm and (
            change.transition in (Transition.OPENED, Transition.REOPENED)
            or (change.transition is Transition.CLASSIFIED and asks_for_more)
        )
        is_detail = change.transition in (Transition.WORSENED, Transition.CLASSIFIED)
        level = logging.WARNING if is_loud else logging.DEBUG if is_detail else logging.INFO
        log.log(level, "trimtab: %s", describe(change, explained))
        if self._on_incident is not None:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._call, name="trimtab-incidents", daemon=True
                )
                self._thread.start()
            self._waiting.put(incident)

    def close(self) -> None:
        """Wait a little for callbacks that still run."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(CALLBACK_SECONDS)

    def _call(self) -> None:
        on_incident = self._on_incident
        while on_incident is not None and (incident := self._waiting.get()) is not None:
            try:
                on_incident(incident)
            except Exception:
                log.exception("trimtab: on_incident raised; training continues")


def explanation_facts(incident: Incident, explained: Diagnosis | None) -> dict[str, Any]:
    """What alerts and pages need to know about an incident, for the journal."""
    facts: dict[str, Any] = {"is_alarm": _is_alarm(incident)}
    if explained is not None:
        cause = explained.cause
        facts["cause"] = None if cause is None else f"{cause.id} {cause.title}"
        facts["explanation"] = cause_text(explained)
        facts["action"] = explained.action.instruction
    return facts


def describe(change: IncidentChange, explained: Diagnosis | None) -> str:
    """Return one change of an incident in one line."""
    incident = change.incident
    steps = f"step {incident.onset.step}"
    if incident.last.step > incident.onset.step:
        steps = f"steps {incident.onset.step} to {incident.last.step}"
    words = [_symptoms(incident)] if change.transition in _NEWS else []
    if incident.incident_class is not None:
        words.append(incident.incident_class.value)
    if explained is not None and change.transition is not Transition.CLOSED:
        words.append(f"do: {explained.action.kind.value}")
        cause = _IN_BRACKETS.sub("", short_cause(explained)).replace("about ", "")
        words.append(f"cause: {cause}")
    head = f"incident {incident.number} {_WORDS[change.transition]}, {steps}"
    line = f"{head}{': ' if words else ''}{'; '.join(words)}"
    if len(line) > MAX_CHARS and len(words) == 4:
        line = f"{head}: {'; '.join([words[0], *words[2:]])}"  # the class comes again, at the end
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def _symptoms(incident: Incident) -> str:
    """Return the first symptom, and how many more there are."""
    more = len(incident.symptoms) - 1
    return "".join(incident.symptoms[:1]) + (f" and {more} more" if more > 0 else "")


def _is_alarm(incident: Incident) -> bool:
    return any(finding.severity is Severity.ALARM for finding in incident.findings)
