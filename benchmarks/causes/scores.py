"""Scores: how often the cause is right, and how honest the probabilities are."""

import math
from collections import Counter
from collections.abc import Sequence

from benchmarks.causes.cases import Case
from benchmarks.results import table
from trimtab.explain.causes.ranking import Candidate, Ranking, Weights
from trimtab.explain.evidence import ALL_OBSERVATIONS

Ranked = Sequence[tuple[Case, Ranking]]

_HEAVY = math.log(2)
"""An observation with this weight doubles the odds."""

_BINS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.01))


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


def summaries(rows: Sequence[tuple[str, ...]]) -> str:
    return table(
        ("measured on", "incidents", "right first", "right in three", "right where named"), rows
    )


def calibration(ranked: Ranked) -> str:
    """Of the causes that are named with a probability, how many are right."""
    rows = []
    for low, high in _BINS:
        inside = [
            case.cause is first.cause
            for case, ranking in ranked
            if (first := ranking.first).cause and low <= first.probability < high
        ]
        rows.append(
            (f"{100 * low:.0f} to {min(100 * high, 100):.0f} %", str(len(inside)), _of(inside))
        )
    silent = sum(ranking.named is None for _, ranking in ranked)
    rows.append(("no cause named (under 50 %)", str(silent), "-"))
    return table(("said with", "incidents", "right"), rows)


def confusion(ranked: Ranked) -> str:
    """Every cause: how many incidents, how many right, and what the others were taken for."""
    rows = []
    for cause in sorted({case.cause for case, _ in ranked if case.cause}, key=lambda c: c.id):
        mine = [(case, ranking) for case, ranking in ranked if case.cause is cause]
        wrong = Counter(
            (id_of(ranking.first), case.kind, case.grade)
            for case, ranking in mine
            if ranking.first.cause is not cause
        )
        taken = ", ".join(f"{id} {n}x ({kind} {grade})" for (id, kind, grade), n in wrong.items())
        right = len(mine) - sum(wrong.values())
        rows.append((f"{cause.id} {cause.title}", f"{right} of {len(mine)}", taken))
    return table(("cause", "right first", "taken for (kind, grade)"), rows)


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


def id_of(candidate: Candidate | None) -> str:
    return candidate.cause.id if candidate is not None and candidate.cause else "none"


def _of(flags: Sequence[bool]) -> str:
    return _share(sum(flags), len(flags)) if flags else "-"


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.0f} %)" if total else "-"
