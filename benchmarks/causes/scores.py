"""Scores: how often the cause is right, and what speaks for each."""

import math
from collections.abc import Sequence

from benchmarks.causes.cases import Case
from benchmarks.results import table
from trimtab.explain.causes.ranking import Ranking, Weights
from trimtab.explain.evidence import ALL_OBSERVATIONS

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
    shares = (_share(first, len(ranked)), _share(three, len(ranked)), _of(named))
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
    return _share(sum(flags), len(flags)) if flags else "-"


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.0f} %)" if total else "-"
