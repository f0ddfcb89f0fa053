"""Incident: findings grouped in time, with an onset, a peak, an end and a class."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trimtab.core.findings import Finding, Severity, Symptom


class IncidentClass(StrEnum):
    """What became of the loss."""

    HARD_BATCH = "hard batch"
    RECOVERABLE = "recoverable"
    LINGERING = "lingering"
    DIVERGENT = "divergent"
    SILENT = "silent"
    PLATEAU = "plateau"


class Transition(StrEnum):
    """What changed about an incident."""

    OPENED = "opened"
    WORSENED = "worsened"
    CLASSED = "classed"
    CLOSED = "closed"
    REOPENED = "reopened"
    FORESEEN = "foreseen"
    REBASELINED = "re-baselined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A record that matters to an incident."""

    step: int
    tick: int
    loss: float | None
    """None if no loss was recorded there, which is not the same as NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What will probably become of an incident that is not over yet."""

    incident_class: IncidentClass
    certainty: float
    """The share of labelled public incidents that looked the same and went that way."""
    records: int
    """Records from the alarm on that it was judged by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Findings grouped in time."""

    number: int
    """Counted from 1 in the order of opening."""
    onset: Moment
    """The first sign, back-dated to the first precursor."""
    peak: Moment
    """The worst loss while the incident was open; a non-finite one is worse than any finite one."""
    end: Moment | None
    """The record at which it was over; None while it is open or if the log stopped first."""
    last: Moment
    """The last record that was looked at while it was open."""
    baseline_mean: float | None
    """Usual loss before the onset; None if too few losses came before."""
    baseline_deviation: float | None
    """Usual deviation of the loss before the onset."""
    records: int
    """Records from the onset to the end, or to the last one looked at."""
    incident_class: IncidentClass | None
    """None while it is too early to say."""
    findings: tuple[Finding, ...]
    """The opening finding and each later one of a symptom not seen before in this incident."""
    num_findings: int
    """All findings that fell into it."""
    outlook: Outlook | None = None
    """The latest word on what will become of it, while the class is open."""
    new_level: float | None = None
    """The loss that was taken as the new normal, where it did not come back."""

    @property
    def symptoms(self) -> tuple[Symptom, ...]:
        """The kinds of findings in it, in the order of first sight."""
        return tuple(dict.fromkeys(finding.symptom for finding in self.findings))

    @property
    def is_open(self) -> bool:
        """Whether it has not been seen to end."""
        return self.end is None

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Incident":
        """The incident that `dataclasses.asdict` took apart."""
        named = state["incident_class"]
        outlook = state["outlook"]
        return cls(
            **{
                **state,
                "onset": Moment(**state["onset"]),
                "peak": Moment(**state["peak"]),
                "end": Moment(**state["end"]) if state["end"] else None,
                "last": Moment(**state["last"]),
                "incident_class": IncidentClass(named) if named else None,
                "findings": tuple(finding_from_state(part) for part in state["findings"]),
                "outlook": _outlook_from_state(outlook) if outlook else None,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentChange:
    """One transition of one incident, with the incident as it then stood."""

    transition: Transition
    tick: int
    incident: Incident


def _outlook_from_state(state: Mapping[str, Any]) -> Outlook:
    return Outlook(**{**state, "incident_class": IncidentClass(state["incident_class"])})


def finding_from_state(state: Mapping[str, Any]) -> Finding:
    """The finding that `dataclasses.asdict` took apart."""
    return Finding(
        **{
            **state,
            "symptom": Symptom(state["symptom"]),
            "severity": Severity(state["severity"]),
        }
    )
