"""IncidentNews: what the observer of a run says about an incident, an event for each change."""

from dataclasses import dataclass
from typing import Any, Self

from trimtab.core.block import Event
from trimtab.core.incidents import IncidentClass, Transition, symptoms_text


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentNews:
    """What an event says about an incident."""

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
    checkpoint: str = ""
    """The newest one from before the onset, by its name; empty if none is known."""
    tone: str = "warn"
    """`alarm` for what needs an act, `good` for what needs nothing, else `warn`."""
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
        transition = _member(Transition, facts.get("transition"))
        named = _member(IncidentClass, facts.get("incident_class")) or IncidentClass.OPEN
        return cls(
            number=number,
            transition=transition,
            step=event.step,
            onset=onset if type(onset) is int else event.step,
            incident_class=named,
            symptoms=tuple(map(str, symptoms)) if isinstance(symptoms, list | tuple) else (),
            is_alarm=facts.get("is_alarm") is not False,
            cause=_text(facts.get("explanation")),
            action=_text(facts.get("action")),
            checkpoint=_text(facts.get("checkpoint")),
            tone=_text(facts.get("tone")) or _tone(named, transition),
            dismissal=f"dismissed by {facts['dismissed']}: {facts.get('text')}"
            if facts.get("dismissed")
            else "",
        )

    @property
    def is_over(self) -> bool:
        """Whether it asks nothing of anybody any more; one that needs an act does until then."""
        is_closed = self.transition is Transition.CLOSED and self.tone != "alarm"
        return is_closed or self.transition is Transition.DISMISSED

    @property
    def what(self) -> str:
        """The symptoms that matter."""
        return symptoms_text(self.symptoms) or "no symptom"

    def describe(self) -> str:
        if self.dismissal:
            return self.dismissal
        line = f"step {self.onset}: {self.what}; {self.incident_class}"
        return f"{line}; {self.cause}" if self.cause else line


def _tone(named: IncidentClass, transition: Transition | None) -> str:
    """Return the tone where the action is not known, as in runs before 0.4."""
    is_over = transition is Transition.CLOSED or named is IncidentClass.OPEN
    return "alarm" if named.is_severe and not is_over else "warn"


def _member(kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
