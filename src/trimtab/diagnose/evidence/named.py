"""Checks for findings that name their cause: does the incident have one?"""

from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.evidence.check import (
    Check,
    CheckResult,
    answered,
    caveat,
    first_finding,
    number,
)

_MAX_LISTED = 3
"""More symptoms are not listed."""


def has_finding(*symptoms: str) -> Check:
    """The check whether the incident has a finding with one of these symptoms."""

    def check(context: IncidentContext) -> CheckResult:
        first = first_finding(context, *symptoms)
        if first is None:
            if len(symptoms) > _MAX_LISTED:
                return answered("findings", False, "no such finding")
            return answered("findings", False, f"no finding: {' or '.join(symptoms)}")
        expected = "" if first.expected is None else f", expected {number(first.expected)}"
        seen = f"{first.signal} {number(first.value)} at step {first.step}{expected}"
        return answered(first.signal, True, f"{seen}{caveat(context, first)}")

    return check
