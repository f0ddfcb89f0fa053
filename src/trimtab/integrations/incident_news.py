"""IncidentNews: what the observer of a run says about an incident, an event for each change."""

from dataclasses import dataclass
from typing import Any, Self

from trimtab.core.block import Event
from trimtab.core.findings import Severity
from trimtab.core.incidents import Incident, IncidentClass, Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentNews:
    """What changed about an incident, from an event or from the incident itself."""

    number: int
    transition: Transition | None
    """None if it is not known what changed."""
    step: int
    onset: int
    incident_class: IncidentClass
    symptoms: tuple[str, ...]
    is_alarm: bool = True
    cause: str = ""
    action: str = ""
    dismissal: str = ""
    """Who has dismissed it, and why, in a few words."""

    @classmethod
    def from_event(cls, event: Event) -> Self | None:
        """Return the incident in an event of a run; None if it is a different event."""
        facts = event.facts
        number = facts.get("number")
        if event.kind != "incident" or type(number) is not int:
            return None
        onset, symptoms = facts.get("onset"), facts.get("symptoms")
        return cls(
            number=number,
            transition=_member(Transition, facts.get("transition")),
            step=event.step,
            onset=onset if type(onset) is int else event.step,
            incident_class=_member(IncidentClass, facts.get("incident_class"))
            or IncidentClass.OPEN,
            symptoms=tuple(map(str, symptoms)) if isinstance(symptoms, list | tuple) else (),
            is_alarm=facts.get("is_alarm") is not False,
            cause=_text(facts.get("explanation")),
            action=_text(facts.get("action")),
            dismissal=f"dismissed by {facts['dismissed']}: {facts.get('text')}"
            if facts.get("dismissed")
            else "",
        )

    @classmethod
    def from_incident(cls, incident: Incident) -> Self:
        """Return the news of an incident as `on_incident` gets it."""
        return cls(
            number=incident.number,
            transition=None if incident.end is None else Transition.CLOSED,
            step=incident.last.step,
            onset=incident.onset.step,
            incident_class=incident.incident_class,
            symptoms=incident.symptoms,
            is_alarm=any(finding.severity is Severity.ALARM for finding in incident.findings),
        )

    @property
    def is_over(self) -> bool:
        return self.transition in (Transition.CLOSED, Transition.DISMISSED)

    def describe(self) -> str:
        if self.dismissal:
            return self.dismissal
        symptoms = ", ".join(self.symptoms) or "no symptom"
        line = f"step {self.onset}: {symptoms}; {self.incident_class}"
        return f"{line}; {self.cause}" if self.cause else line


def _member(kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
