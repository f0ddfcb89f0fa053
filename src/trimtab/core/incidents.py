"""Incident: findings grouped in time, with an onset, a peak, an end and a class."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trimtab.core.findings import NOT_FINITE, OF_POLICY, Explanation, Finding, Severity, Symptom
from trimtab.core.text import listed


class IncidentClass(StrEnum):
    """What became of the loss, the mildest class first."""

    HARD_BATCH = "hard batch"
    RECOVERABLE = "recoverable"
    PLATEAU = "plateau"
    SILENT = "silent"
    LINGERING = "lingering"
    DIVERGENT = "divergent"


# An incident without a class is open and may still become anything, so it ranks above the classes
# that cost nothing.
_MILDEST_FIRST = (*list(IncidentClass)[:3], None, *list(IncidentClass)[3:])

SEVERE = frozenset(_MILDEST_FIRST[3:])
"""The classes that hurt a run, and None for an incident that has no class yet."""


def severity_rank(incident_class: IncidentClass | None) -> int:
    """Return the place of a class in the order of severity: 0 for the mildest."""
    return _MILDEST_FIRST.index(incident_class)


class Transition(StrEnum):
    """What changed about an incident."""

    OPENED = "opened"
    WORSENED = "worsened"
    """An alarm with a new symptom joined it."""
    CLASSIFIED = "classified"
    """It has a class, or a different one than before."""
    CLOSED = "closed"
    REOPENED = "reopened"
    FORECAST = "forecast"
    """It has a new outlook."""
    REBASELINED = "new baseline"
    """The loss did not come back: its level is the new normal."""
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
class Outlook:
    """What will probably become of an incident that is not over yet."""

    incident_class: IncidentClass
    certainty: float
    """The share of labelled incidents with the same outlook for which it came true."""
    records: int
    """Records after the alarm at which it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings grouped in time."""

    number: int
    """Counted from 1 in the order of opening."""
    onset: Moment
    """The first sign, dated back to the first precursor."""
    peak: Moment
    """The worst loss while the incident was open; a non-finite one is worse than any finite one."""
    end: Moment | None
    """The record at which it was over; None while it is open or if the log ends first."""
    last: Moment
    """The last record with a loss while it was open."""
    baseline_mean: float | None
    """Usual loss before the onset; None if too few losses came before."""
    baseline_deviation: float | None
    """Usual deviation of the loss before the onset."""
    records: int
    """Records from the onset to the end, or to `last`."""
    incident_class: IncidentClass | None
    """None while it is too early to say."""
    findings: tuple[Finding, ...]
    """The opening findings, and each later one with a symptom that is new in this incident."""
    num_findings: int
    """How many alarms it has, repeated symptoms included."""
    outlook: Outlook | None = None
    """The latest forecast of what will become of it."""
    back_in: int | None = None
    """Steps until the loss is back at its present pace, while its gap to the trend shrinks; None if
    it does not, and in the time in which most incidents come back."""
    new_level: float | None = None
    """The level of the loss that became the new normal, where it did not come back."""
    is_surrogate: bool = False
    """Whether its loss is that of a policy or an adversary: only non-finite values count then, and
    what it says of its level means nothing."""
    has_direction: bool | None = None
    """Whether the loss had fallen, more than it rose, before the incident; None if too few losses
    came before to say."""
    start_loss: float | None = None
    """The loss that the run started with; None if that was not recorded."""
    started_again: bool = False
    """Whether the loss returned to where the run began and fell as it did then: a restart."""
    was_kept_out: bool = False
    """Whether it is only of non-finite steps, and none of them was applied to the weights."""

    @property
    def symptoms(self) -> tuple[str, ...]:
        """The symptoms of its findings, each once, in order."""
        return tuple(dict.fromkeys(finding.symptom for finding in self.findings))

    def __repr__(self) -> str:
        named = self.incident_class.value if self.incident_class else "open"
        symptoms = listed(map(str, self.symptoms), 3)
        return f"<Incident {self.number} at step {self.onset.step:,}, {named}: {symptoms}>"

    @property
    def is_of_policy(self) -> bool:
        """Whether signals of reinforcement learning show it, and all is finite."""
        found = set(self.symptoms)
        return not OF_POLICY.isdisjoint(found) and NOT_FINITE.isdisjoint(found)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Incident":
        """Return the incident that `dataclasses.asdict` saved."""
        incident_class, outlook = state["incident_class"], state["outlook"]
        if outlook:
            likely = IncidentClass(outlook["incident_class"])
            outlook = Outlook(**{**outlook, "incident_class": likely})
        return cls(
            **{
                **state,
                "onset": Moment(**state["onset"]),
                "peak": Moment(**state["peak"]),
                "end": Moment(**state["end"]) if state["end"] else None,
                "last": Moment(**state["last"]),
                "incident_class": IncidentClass(incident_class) if incident_class else None,
                "findings": tuple(finding_from_state(part) for part in state["findings"]),
                "outlook": outlook or None,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChange:
    """One transition of one incident, with the incident as it stood at that moment."""

    transition: Transition
    tick: int
    incident: Incident


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
