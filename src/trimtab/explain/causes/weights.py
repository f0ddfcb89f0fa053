"""Weights: how often each observation is made for each cause, as measured in the lab.

The data file holds one share per observation and cause. The weight of an answer for a cause is the
logarithm of how much more often it is given for that cause than on average over all causes.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from trimtab.core.causes import Cause

FILE = "weights.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What is known about observations and causes."""

    shares: Mapping[str, Mapping[Cause, float]]
    """By observation and cause: the share of incidents in which the answer is yes, smoothed."""
    temperature: float
    """Scores are divided by it: observations are not independent, so their sum is too certain."""
    unknown: Mapping[str, float] = field(default_factory=dict)
    """By observation: the share of yes if nothing known fits; where it is not given, the mean over
    the causes."""
    provenance: Mapping[str, Any]
    """The command that wrote it, the seeds, the date."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes that were measured."""
        return tuple(next(iter(self.shares.values())))

    def weight(self, observation: str, cause: Cause | None, *, yes: bool) -> float:
        """What an answer says about a cause: over 0 speaks for it, under 0 against it."""
        shares = self.shares.get(observation)
        if shares is None:
            return 0.0
        mean = sum(shares.values()) / len(shares)
        share = self.unknown.get(observation, mean) if cause is None else shares[cause]
        return math.log(share / mean) if yes else math.log((1 - share) / (1 - mean))

    def separation(self, observation: str, first: Cause | None, second: Cause | None) -> float:
        """How far apart two causes are expected to move if this observation is made."""
        shares = self.shares.get(observation)
        if shares is None:
            return 0.0
        mean = sum(shares.values()) / len(shares)
        without = self.unknown.get(observation, mean)
        p, q = (without if cause is None else shares[cause] for cause in (first, second))
        return (p - q) * (math.log(p / q) - math.log((1 - p) / (1 - q)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "provenance": dict(self.provenance),
            "temperature": self.temperature,
            "shares": {
                name: {cause.id: round(share, 3) for cause, share in shares.items()}
                for name, shares in self.shares.items()
            },
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Weights":
        """The weights that `to_dict` wrote."""
        known = {cause.id: cause for cause in Cause}
        return cls(
            provenance=state["provenance"],
            temperature=state["temperature"],
            shares={
                name: {known[id]: share for id, share in shares.items()}
                for name, shares in state["shares"].items()
            },
        )


@cache
def lab_weights() -> Weights:
    """The weights in the data file beside this one."""
    text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    return Weights.from_dict(json.loads(text))
