"""IncidentLog: what happens to a run is reported as it happens, in one line each.

WARNING for alarms, with step, class, likely cause, what to do and where the post-mortem will be;
INFO for the rest. Silence means health.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from trimtab.core.findings import Severity
from trimtab.core.incidents import Incident, IncidentChange, Transition
from trimtab.explain.diagnosis import Diagnosis
from trimtab.journal import RunDirectory
from trimtab.live.shield import log
from trimtab.report.incident_files import incident_folder_name
from trimtab.report.wording import cause_text, short_cause

CALLBACK_SECONDS = 5.0
"""How long closing waits for callbacks that still run."""

_WORDS = {
    Transition.OPENED: "opened",
    Transition.REOPENED: "came back",
    Transition.WORSENED: "got worse",
    Transition.CLASSIFIED: "is classified",
    Transition.CLOSED: "is over",
    Transition.ROLLED_BACK: "was rolled back",
}

_ALARMS = frozenset({Transition.OPENED, Transition.REOPENED, Transition.WORSENED})
_ENDS = frozenset({Transition.CLOSED, Transition.ROLLED_BACK})


class IncidentLog:
    """Logs changes of incidents and hands them to the user's callback, on a thread of its own."""

    def __init__(self, run: RunDirectory, on_incident: Callable[[Incident], None] | None) -> None:
        self._run = run
        self._on_incident = on_incident
        self._waiting: queue.SimpleQueue[Incident | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def report(self, change: IncidentChange, explained: Diagnosis | None) -> None:
        """Log one change and hand the incident to the callback."""
        if change.transition not in _WORDS:
            return
        incident = change.incident
        is_alarm = _is_alarm(incident)
        is_loud = is_alarm and change.transition not in _ENDS
        log.log(
            logging.WARNING if is_loud else logging.INFO,
            "trimtab: %s",
            describe(change, explained, self._run),
        )
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


def describe(change: IncidentChange, explained: Diagnosis | None, run: RunDirectory) -> str:
    """One change of an incident in one line: all that is known at first, then what is new."""
    incident = change.incident
    words = [", ".join(incident.symptoms)] if change.transition in _ALARMS else []
    if incident.incident_class is not None:
        words.append(incident.incident_class.value)
    if explained is not None and change.transition not in _ENDS:
        words.append(f"likely cause: {short_cause(explained)}")
        words.append(f"do: {explained.action.instruction.rstrip('.')}")
    if change.transition in _ALARMS:
        folder = run.incidents / incident_folder_name(incident)
        words.append(f"post-mortem at the end of the run: {folder}")
    since = f" (since step {incident.onset.step})" if incident.onset != incident.last else ""
    head = f"incident {incident.number} {_WORDS[change.transition]} at step {incident.last.step}"
    return f"{head}{since}{': ' if words else ''}{'; '.join(words)}"


def _is_alarm(incident: Incident) -> bool:
    return any(finding.severity is Severity.ALARM for finding in incident.findings)
