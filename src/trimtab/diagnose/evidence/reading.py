"""Reading: what one panel shows about one incident."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from trimtab.diagnose.context import IncidentContext


class Verdict(StrEnum):
    """The answer of a panel."""

    YES = "yes"
    NO = "no"
    NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a panel shows."""

    signal: str
    """The signal, event or setting that was looked at."""
    verdict: Verdict
    observation: str


Panel = Callable[[IncidentContext], Reading]
"""Reads one yes-or-no off the records around an incident."""


def reading(signal: str, answer: bool, observation: str) -> Reading:
    """A panel that could be read."""
    verdict = Verdict.YES if answer else Verdict.NO
    return Reading(signal=signal, verdict=verdict, observation=observation)


def unrecorded(signal: str, observation: str) -> Reading:
    """A panel whose signal was not recorded."""
    return Reading(signal=signal, verdict=Verdict.NOT_RECORDED, observation=observation)


def number(value: float | None) -> str:
    """A value as people read it."""
    if value is None:
        return "not recorded"
    return f"{value:.4g}" if math.isfinite(value) else str(value)
