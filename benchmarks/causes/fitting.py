"""Fit: shares of observations by cause, and the temperature that makes probabilities honest."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.causes.cases import Case
from benchmarks.causes.expectations import EXPECTATIONS
from benchmarks.results import table
from trimtab.core.causes import Cause
from trimtab.explain.causes.ranking import Ranking, Weights, rank, with_constructed
from trimtab.explain.evidence import ALL_OBSERVATIONS, OBSERVATIONS
from trimtab.explain.evidence.checks import ObservedOutcome

PRIOR_INCIDENTS = 4.0
"""The expectations count as this many incidents of each cause. Source: 1, 2 and 4 differ by less
than one incident in leave-one-seed-out; with few incidents per cause the largest is the safest."""

TEMPERATURES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)

_LEAST = 1e-3
"""The probability of a true cause that is not among the candidates, for the likelihood."""


def fit(cases: Sequence[Case], provenance: Mapping[str, Any]) -> Weights:
    """Shares from all cases, the temperature by leaving one seed out at a time."""
    shares = fit_shares(cases)
    scores = {}
    for temperature in TEMPERATURES:
        found = leave_one_seed_out(cases, temperature)
        likelihoods = [math.log(max(_probability(r, case.cause), _LEAST)) for case, r in found]
        scores[temperature] = sum(likelihoods)
    best = max(scores, key=lambda temperature: scores[temperature])
    return Weights(shares=shares, temperature=best, provenance=provenance)


def fit_shares(cases: Sequence[Case]) -> dict[str, dict[Cause, float]]:
    """How often each observation is made for each cause, starting from what is expected."""
    return {id: {cause: _share(cases, id, cause) for cause in EXPECTATIONS} for id in OBSERVATIONS}


def _share(cases: Sequence[Case], id: str, cause: Cause) -> float:
    answers = [case.answers.get(id) for case in cases if case.cause is cause]
    yes = answers.count(ObservedOutcome.YES.value)
    made = yes + answers.count(ObservedOutcome.NO.value)
    expected = EXPECTATIONS[cause].share(id)
    return (yes + PRIOR_INCIDENTS * expected) / (made + PRIOR_INCIDENTS)


def leave_one_seed_out(cases: Sequence[Case], temperature: float) -> list[tuple[Case, Ranking]]:
    """Each case with a cause, ranked by weights that were fitted without the runs of its seed."""
    found = []
    for seed in sorted({case.seed for case in cases}):
        shares = fit_shares([case for case in cases if case.seed != seed])
        weights = with_constructed(Weights(shares=shares, temperature=temperature, provenance={}))
        found += [
            (case, rank(case.results(), weights, case.situation))
            for case in cases
            if case.seed == seed and case.cause is not None
        ]
    return found


def _probability(ranking: Ranking, cause: Cause | None) -> float:
    return next((c.probability for c in ranking.candidates if c.cause is cause), 0.0)


HEADER = ("measured on", "incidents", "right first", "right in three", "right where named")
Ranked = Sequence[tuple[Case, Ranking]]

_HEAVY = math.log(2)
"""An observation with this weight doubles the odds."""


def summary(name: str, ranked: Ranked) -> tuple[str, ...]:
    """One line: what was measured, right first, right in the first three."""
    first = sum(ranking.first.cause is case.cause for case, ranking in ranked)
    three = sum(
        case.cause in [candidate.cause for candidate in ranking.candidates[:3]]
        for case, ranking in ranked
    )
    named = [ranking.named.cause is case.cause for case, ranking in ranked if ranking.named]
    shares = (_percent(first, len(ranked)), _percent(three, len(ranked)), _of(named))
    return name, str(len(ranked)), *shares


def speaks_for(weights: Weights) -> str:
    """For every cause, the observations that speak for it most: heavy, and often made."""
    rows = []
    by_observation = {id: weights.weigh(id, yes=True) for id in weights.shares}
    for cause in weights.causes:
        heavy = {id: weight[cause] for id, weight in by_observation.items()}
        chosen = [id for id, weight in heavy.items() if weight >= _HEAVY]
        chosen.sort(key=lambda id: -heavy[id] * weights.shares[id][cause])
        said = "; ".join(f"{ALL_OBSERVATIONS[id].statement} {heavy[id]:+.1f}" for id in chosen[:4])
        rows.append((f"{cause.id} {cause.title}", said))
    return table(("cause", "evidence for it"), rows)


def _of(flags: Sequence[bool]) -> str:
    return _percent(sum(flags), len(flags)) if flags else "-"


def _percent(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.0f} %)" if total else "-"
