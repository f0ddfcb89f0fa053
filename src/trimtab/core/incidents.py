"""Incident: findings grouped in time, with an onset, a peak, an end and a class."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trimtab.core.findings import NOT_FINITE, OF_POLICY, Explanation, Finding, Severity, Symptom
from trimtab.core.incident_facts import Facts
from trimtab.core.text import counted


class IncidentClass(StrEnum):
    """What an incident did to the run, the mildest class first."""

    KEPT_OUT = "kept out"
    """The bad steps were discarded and never reached the weights."""
    RESTORED = "restored"
    """The damage was undone."""
    RECOVERED = "recovered"
    """The loss is back on its trend by itself: the playbook's type 1."""
    SILENT = "silent"
    """A signal left its usual range, and the loss did not follow."""
    RECOVERING = "recovering"
    """The gap to the trend shrinks: type 1 while it lasts."""
    PLATEAU = "plateau"
    """The run does not learn, or no longer."""
    OPEN = "open"
    """It is too early to say, or the loss does not tell."""
    LINGERING = "lingering"
    """The loss settled above its trend: type 2."""
    COLLAPSED = "collapsed"
    """The reward of a policy is gone."""
    DIVERGENT = "divergent"
    """The loss rises, or stays where nothing learnt is left: type 3."""
    DEAD = "dead"
    """The loss is not finite any more, or stands still."""

    @property
    def severity(self) -> int:
        """The place in the order above: 0 for the mildest."""
        return list(IncidentClass).index(self)

    @property
    def is_severe(self) -> bool:
        """Whether it hurts a run, or may."""
        return self.severity >= IncidentClass.PLATEAU.severity


class Transition(StrEnum):
    """What changed about an incident."""

    OPENED = "opened"
    WORSENED = "worsened"
    """An alarm with a new symptom joined it."""
    CLASSIFIED = "classified"
    """It has a class, or a different one than before."""
    CLOSED = "closed"
    REOPENED = "reopened"
    DISMISSED = "dismissed"
    """A person has noted that it needs nothing: `trimtab note RUN TEXT --dismiss N`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One record of an incident, as far as the incident needs it."""

    step: int
    tick: int
    loss: float | None
    """None if no loss was recorded there, which is not the same as NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings grouped in time."""

    number: int
    """Counted from 1 in the order of opening."""
    onset: Moment
    """The first sign, dated back to where the loss began to leave its trend."""
    peak: Moment
    """The worst loss while the incident was open; a non-finite one is worse than any finite one."""
    end: Moment | None
    """The record at which it was over; None while it is open or if the log ends first."""
    last: Moment
    """The last record with a loss while it was open."""
    records: int
    """Records from the onset to the end, or to `last`."""
    incident_class: IncidentClass
    certainty: float
    """How sure the class is, from 0.5 to 1."""
    facts: Facts
    """What was true at `last`: the class follows from it."""
    findings: tuple[Finding, ...]
    """The opening findings, and each later one with a symptom that is new in this incident."""
    num_findings: int
    """How many alarms it has, repeated symptoms included."""

    @property
    def symptoms(self) -> tuple[str, ...]:
        """The symptoms of its findings, each once, in order."""
        return tuple(dict.fromkeys(finding.symptom for finding in self.findings))

    @property
    def main_symptom(self) -> str:
        """The symptom that names it: the first one that is not finite, else the first one."""
        return _by_weight(self.symptoms)[0]

    def __repr__(self) -> str:
        at = f"Incident {self.number} at step {self.onset.step:,}"
        return f"<{at}, {self.incident_class}: {symptoms_text(self.symptoms)}>"

    @property
    def is_of_policy(self) -> bool:
        """Whether signals of reinforcement learning show it, and all is finite."""
        found = set(self.symptoms)
        return not OF_POLICY.isdisjoint(found) and NOT_FINITE.isdisjoint(found)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Incident":
        """Return the incident that `dataclasses.asdict` saved."""
        return cls(
            **{
                **state,
                "onset": Moment(**state["onset"]),
                "peak": Moment(**state["peak"]),
                "end": Moment(**state["end"]) if state["end"] else None,
                "last": Moment(**state["last"]),
                "incident_class": IncidentClass(state["incident_class"]),
                "facts": Facts.from_state(state["facts"]),
                "findings": tuple(finding_from_state(part) for part in state["findings"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChange:
    """One transition of one incident, with the incident as it stood at that moment."""

    transition: Transition
    tick: int
    incident: Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentTransition:
    """One transition of one incident, without the incident: what an earlier look had not seen."""

    number: int
    transition: Transition
    tick: int
    step: int
    before: IncidentClass | None
    """Its class until then; None where it opened."""
    after: IncidentClass


def transitions_of(
    changes: Iterable[IncidentChange], earlier: Iterable[IncidentTransition] = ()
) -> list[IncidentTransition]:
    """Return what changed about the incidents of a run, in order, after what is known already."""
    found = list(earlier)
    classes = {one.number: one.after for one in found}
    for change in changes:
        one = change.incident
        found.append(
            IncidentTransition(
                number=one.number,
                transition=change.transition,
                tick=change.tick,
                step=one.last.step,
                before=classes.get(one.number),
                after=one.incident_class,
            )
        )
        classes[one.number] = one.incident_class
    return found


def _by_weight(symptoms: Iterable[str]) -> list[str]:
    """Return symptoms, each once: those that are not finite, then the others as they came."""
    return sorted(dict.fromkeys(symptoms), key=lambda symptom: symptom not in NOT_FINITE)


def symptoms_text(symptoms: Iterable[str], most: int = 3) -> str:
    """Return the symptoms that matter: "loss spike, gradient spike and 23 more signals"."""
    ordered = _by_weight(symptoms)
    more = len(ordered) - most
    return ", ".join(ordered[:most]) + (f" and {counted(more, 'more signal')}" if more > 0 else "")


def finding_from_state(state: Mapping[str, Any]) -> Finding:
    """Return the finding that `dataclasses.asdict` saved."""
    symptom, explanation = state["symptom"], state["explanation"]
    return Finding(
        **{
            **state,
            # A user's detector may report any string.
            "symptom": Symptom(symptom) if symptom in set(Symptom) else symptom,
            "severity": Severity(state["severity"]),
            "explanation": Explanation(**explanation) if explanation else None,
        }
    )
