"""Ranking: the causes of an incident by their probability, from what was observed."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

from trimtab.core.causes import Cause
from trimtab.core.text import listed
from trimtab.explain.causes.plausible import LOGIT_CAUSES, Situation, base_rates, cap, concerns
from trimtab.explain.evidence import BY_CONSTRUCTION
from trimtab.explain.evidence.checks import Answers, ObservedOutcome

WEIGHTS_FILE = "weights.json"


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
        return tuple(next(iter(self.shares.values())))

    def weigh(self, observation: str, *, yes: bool) -> Mapping[Cause | None, float]:
        """Return what an answer says about each cause: over 0 speaks for it, under 0 against it."""
        if observation not in self.shares:
            return dict.fromkeys((*self.causes, None), 0.0)
        mean, shares = self._expected(observation)
        if yes:
            return {cause: math.log(share / mean) for cause, share in shares.items()}
        return {cause: math.log((1 - share) / (1 - mean)) for cause, share in shares.items()}

    def separation(self, observation: str, first: Cause | None, second: Cause | None) -> float:
        """Return how far apart two causes are expected to move if this observation is made."""
        if observation not in self.shares:
            return 0.0
        _, shares = self._expected(observation)
        p, q = shares[first], shares[second]
        return (p - q) * (math.log(p / q) - math.log((1 - p) / (1 - q)))

    def _expected(self, observation: str) -> tuple[float, Mapping[Cause | None, float]]:
        """Return the mean share of yes, and that of each cause; None is nothing known."""
        shares = self.shares[observation]
        mean = sum(shares.values()) / len(shares)
        return mean, dict([*shares.items(), (None, self.unknown.get(observation, mean))])

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as JSON values."""
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
    text = resources.files(__package__).joinpath(WEIGHTS_FILE).read_text(encoding="utf-8")
    return Weights.from_dict(json.loads(text))


@cache
def all_weights() -> Weights:
    """Return the weights fitted in the lab, with those that are by construction."""
    return with_constructed(lab_weights())


def with_constructed(fitted: Weights) -> Weights:
    """Return fitted weights, with those of observations that mean what they are."""
    given, not_planted = base_rates()["by construction"], base_rates()["not planted"]
    of_policy = [cause for cause in Cause if cause.is_of_policy]
    shares = {
        name: {cause: row.get(cause.id, row["others"]) for cause in (*fitted.causes, *of_policy)}
        for name, row in given["shares"].items()
    }
    # What was fitted on language models says nothing about a policy: its mean has no weight.
    known = {
        name: {
            cause: not_planted.get(name, {}).get(cause.id, share)
            for cause, share in {**row, **dict.fromkeys(of_policy, fmean(row.values()))}.items()
        }
        for name, row in fitted.shares.items()
    }
    unknown = {name: row.get("unknown", given["unknown"]) for name, row in given["shares"].items()}
    return dataclasses.replace(fitted, shares={**known, **shares}, unknown=unknown)


SUPPORTED = 0.5
"""The probability from which on a cause is named; less probable ones are possible, no more."""

SUPPORT = math.log(1.5)
"""A cause is only named if something that was seen speaks for it with at least this weight. Source:
lighter weights come and go with the runs that are fitted on."""

ALIKE = 0.5
"""Causes with at least this share of the first one's probability cannot be told apart from it.
Source: odds under 3 are "worth no more than a mention" (Kass and Raftery, 1995); 2 is stricter."""

_MIN_SEPARATION = 0.5
"""An observation that is expected to move two causes by less does not decide between them. Source:
half a nat does not turn odds of 2 around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One cause with its probability."""

    cause: Cause | None
    """None is something else: nothing known, or nothing that was recorded."""
    probability: float
    weights: Mapping[str, float]
    """What each observation says about it: over 0 for it, under 0 against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The candidates for the cause of an incident, the most probable first."""

    candidates: tuple[Candidate, ...]
    results: Answers
    """What was seen."""
    decides: str | None
    """The observation that was not made and would decide best between the first two candidates;
    None if none would."""

    def __repr__(self) -> str:
        names = (
            f"{c.cause.id if c.cause else 'none'} {c.probability:.0%}" for c in self.candidates
        )
        return f"<Ranking: {listed(names, 3)}>"

    @property
    def first(self) -> Candidate:
        return self.candidates[0]

    @property
    def named(self) -> Candidate | None:
        """The cause that is likely enough to be named; None if the cause is not known."""
        first = self.first
        return first if first.cause is not None and first.probability >= SUPPORTED else None

    @property
    def alike(self) -> tuple[Candidate, ...]:
        """The candidates that cannot be told apart from the first, and the first itself."""
        if self.first.cause is None:
            return (self.first,)
        least = ALIKE * self.first.probability
        return tuple(item for item in self.candidates if item.cause and item.probability >= least)

    def deciding(self, count: int) -> tuple[str, ...]:
        """Return what speaks most for the first candidate, above all against the second."""
        other = self.candidates[1].weights if len(self.candidates) > 1 else {}
        cause = self.first.cause
        gains = {
            # Twice for the first, once against the second: evidence that both share decides little.
            name: 2 * weight - other.get(name, 0.0)
            for name, weight in self.first.weights.items()
            if weight > 0 and name in self.results.yes and (not cause or concerns(name, cause))
        }
        return tuple(sorted(gains, key=lambda name: -gains[name])[:count])


def rank(
    answers: Answers,
    weights: Weights,
    situation: Situation | None = None,
    alike: Sequence[tuple[Answers, Situation]] = (),
) -> Ranking:
    """Rank the possible causes, the most probable first, then "something else".

    Args:
        answers: What was seen.
        weights: What each answer says about each cause.
        situation: What kind of run and incident it is; nothing is known about them if None.
        alike: What was seen in other incidents that must have the same cause, and their situations.

    The score of a cause is how often it is behind such incidents and the sum of the weights of all
    answers; what was not recorded says nothing. Of incidents with one cause the mean counts. No
    cause is called more probable than its own signals allow. The rest, and what nothing speaks
    for, is the probability of "something else".
    """
    situation = situation or Situation()
    pooled = ((answers, situation), *alike)
    impossible = frozenset[Cause]().union(*(item.impossible for _, item in pooled))
    known = [cause for cause in weights.causes if cause not in impossible]
    causes: tuple[Cause | None, ...] = (*known, None)
    said_of_each = [_said(causes, seen, weights, known_of) for seen, known_of in pooled]
    said = said_of_each[0]
    scores = {
        cause: fmean(
            math.log(known_of.prior(cause)) + sum(its[cause].values()) / weights.temperature
            for its, (_, known_of) in zip(said_of_each, pooled, strict=True)
        )
        for cause in causes
    }
    # Subtracted before the exponential, which would overflow for a clear case.
    top = max(scores.values())
    odds = {cause: math.exp(score - top) for cause, score in scores.items()}
    total = sum(odds.values())
    listed = [
        Candidate(
            cause=cause,
            probability=min(odds[cause] / total, max(cap(cause, seen) for seen, _ in pooled)),
            weights=said[cause],
        )
        for cause in known
        if situation.has_seen(cause) or any(said[cause][name] >= SUPPORT for name in answers.yes)
    ]
    # A cap must not turn the order around.
    listed.sort(key=lambda candidate: -odds[candidate.cause])
    rest = 1 - sum(candidate.probability for candidate in listed)
    other = Candidate(cause=None, probability=rest, weights=said[None])
    return Ranking(
        candidates=(*listed, other),
        results=answers,
        decides=_decides([*listed, other], answers, weights, situation),
    )


def _said(
    causes: Sequence[Cause | None], answers: Answers, weights: Weights, situation: Situation
) -> Mapping[Cause | None, Mapping[str, float]]:
    """Return what each answer says about each cause."""
    by_answer = [
        (name, weights.weigh(name, yes=yes), situation.share(name, yes))
        for name, yes in answers.made.items()
    ]
    return {
        cause: {name: weight[cause] * share for name, weight, share in by_answer}
        for cause in causes
    }


def _decides(
    candidates: list[Candidate], answers: Answers, weights: Weights, situation: Situation
) -> str | None:
    if len(candidates) < 2:
        return None
    first, second = candidates[0].cause, candidates[1].cause
    signals = base_rates()["decides"]
    own = {name for cause in (first, second) if cause for name in signals[cause.id]}
    # Nobody is asked for attention logits of a run that has no attention.
    own -= {name for cause in situation.impossible & LOGIT_CAUSES for name in signals[cause.id]}
    missing = {
        name: weights.separation(name, first, second)
        for name, result in answers.items()
        # Nobody can record what comes from outside: it is observed where it happens, or not.
        if result.outcome is ObservedOutcome.NOT_RECORDED and name not in BY_CONSTRUCTION
        # Signals of a third cause tell the first two apart by chance.
        if name in own
    }
    best = max(missing, key=lambda name: missing[name], default=None)
    return best if best is not None and missing[best] >= _MIN_SEPARATION else None
