"""Check: a yes/no test on the records around an incident."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from trimtab.core.findings import Finding
from trimtab.explain.context import IncidentContext


class Outcome(StrEnum):
    """The answer of a check."""

    YES = "yes"
    NO = "no"
    NOT_RECORDED = "not recorded"
    TOO_FEW = "too few records"

    @property
    def is_answer(self) -> bool:
        """Whether the question was answered."""
        return self in (Outcome.YES, Outcome.NO)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check found."""

    signal: str
    """The signal, event or setting that was checked."""
    outcome: Outcome
    observation: str


Check = Callable[[IncidentContext], CheckResult]
"""Answers one yes/no question from the records around an incident."""


def answered(signal: str, answer: bool, observation: str) -> CheckResult:
    """The result of a check whose signal was recorded."""
    outcome = Outcome.YES if answer else Outcome.NO
    return CheckResult(signal=signal, outcome=outcome, observation=observation)


def unrecorded(signal: str, observation: str) -> CheckResult:
    """The result of a check whose signal was not recorded."""
    return CheckResult(signal=signal, outcome=Outcome.NOT_RECORDED, observation=observation)


def too_few(signal: str) -> CheckResult:
    """The result of a check whose signal was recorded, but not often enough around the onset."""
    observation = "too few records to tell"
    return CheckResult(signal=signal, outcome=Outcome.TOO_FEW, observation=observation)


def number(value: float | None) -> str:
    """A value in four significant digits."""
    if value is None:
        return "not recorded"
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_finding(
    context: IncidentContext, *symptoms: str, opening: bool = False
) -> Finding | None:
    """The first finding of the incident with one of these symptoms.

    Args:
        context: The incident.
        symptoms: What to look for.
        opening: Only the finding that opened the incident counts.
    """
    findings = context.incident.findings[:1] if opening else context.incident.findings
    return next((finding for finding in findings if finding.symptom in symptoms), None)


def caveat(context: IncidentContext, finding: Finding) -> str:
    """What qualifies a finding whose signal is not raw; empty if it is."""
    quality = context.caveat(finding.signal)
    if finding.confidence < 1:
        return f"{quality}, confidence {100 * finding.confidence:.0f} %"
    return quality
