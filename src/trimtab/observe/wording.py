"""A change of an incident in one line, for the log of the run, and its facts for observer.jsonl.

WARNING when an incident opens, comes back, or turns out to need more than waiting; INFO for its
end, DEBUG for any other class and for each further symptom. Silence means health.
"""

import logging
import math
import re
from typing import Any

from trimtab.core.actions import ActionKind
from trimtab.core.block import Event
from trimtab.core.findings import Severity
from trimtab.core.incidents import (
    Incident,
    IncidentChange,
    IncidentClass,
    Transition,
    symptoms_text,
)
from trimtab.core.text import clause
from trimtab.explain.diagnosis import Diagnosis
from trimtab.report.wording import cause_text, short_cause, steps_text, tone

MAX_CHARS = 120 - len("trimtab: ")
"""Characters of a line; chosen, the width of a terminal."""

_WORDS = {
    Transition.OPENED: "opened",
    Transition.REOPENED: "opened again",
    Transition.WORSENED: "got worse",
    Transition.CLASSIFIED: "classified",
    Transition.CLOSED: "closed",
}

_IN_BRACKETS = re.compile(r" \([^)]*\)")
"""What a title explains: `(log 0, 0/0, full mask)`. A line has 120 characters."""

VERDICT = ("onset", "incident_class", "action", "checkpoint", "tone")
"""Facts that every view of a run shows alike."""

_NEWS = frozenset({Transition.OPENED, Transition.WORSENED})


def level_of(change: IncidentChange, diagnosis: Diagnosis) -> int | None:
    """Return the level at which a change is logged; None for one that is not."""
    if change.transition not in _WORDS:
        return None
    is_loud = _is_alarm(change.incident) and (
        change.transition in (Transition.OPENED, Transition.REOPENED)
        or (
            change.transition is Transition.CLASSIFIED
            and diagnosis.action.kind is not ActionKind.WAIT
        )
    )
    is_detail = change.transition in (Transition.WORSENED, Transition.CLASSIFIED)
    return logging.WARNING if is_loud else logging.DEBUG if is_detail else logging.INFO


def facts_of(change: IncidentChange, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what pages, alerts and trackers know about a change."""
    incident, cause = change.incident, diagnosis.cause
    return {
        "transition": change.transition,
        "number": incident.number,
        "onset": incident.onset.step,
        "peak_loss": incident.peak.loss if incident.peak.loss is not None else math.nan,
        "incident_class": incident.incident_class,
        "symptoms": incident.symptoms,
        "is_alarm": _is_alarm(incident),
        "cause": None if cause is None else cause.label,
        "explanation": cause_text(diagnosis),
        "action": diagnosis.action.instruction,
        "checkpoint": diagnosis.checkpoint,
        "tone": tone(diagnosis),
    }


def describe(change: IncidentChange, diagnosis: Diagnosis) -> str:
    """Return one change of an incident in one line."""
    incident = change.incident
    what = symptoms_text(incident.symptoms, 1) if change.transition in _NEWS else ""
    named = "" if incident.incident_class is IncidentClass.OPEN else incident.incident_class
    do = cause = ""
    if change.transition is not Transition.CLOSED or not diagnosis.needs_nothing:
        do = f"do: {clause(diagnosis.action.instruction)}"
        cause = f"cause: {_IN_BRACKETS.sub('', short_cause(diagnosis)).replace('about ', '')}"
    head = f"incident {incident.number} {_WORDS[change.transition]}, {steps_text(incident)}"
    # Where all has no room, the class goes first: it comes again, at the end. An instruction is
    # never cut: its end is the step to go back to.
    line = head
    for parts in (
        (what, named, do, cause),
        (what, do, cause),
        (what, named, do),
        (what, do),
        (do,),
    ):
        words = "; ".join(filter(None, parts))
        line = f"{head}: {words}" if words else head
        if len(line) <= MAX_CHARS:
            break
    return line


def dismissal_text(event: Event) -> str:
    """Return who has dismissed an incident, and why, in one line."""
    facts = event.facts
    return f"incident {facts['number']} dismissed by {facts['dismissed']}: {facts['text']}"


def _is_alarm(incident: Incident) -> bool:
    return any(finding.severity is Severity.ALARM for finding in incident.findings)
