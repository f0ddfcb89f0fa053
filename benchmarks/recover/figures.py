"""Differences to the clean twin with their bounds, and the tables."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.recover.arms import Arm
from benchmarks.recover.cases import Case

BOUND = 0.02
"""Nats: the upper 95 % bound of the mean paired difference of the final held-out loss."""

MAX_LOST = 30
"""Steps: the median over seeds."""

_T95 = (math.nan, 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""One-sided 95 % quantiles of Student's t, by degrees of freedom."""

Outcomes = Mapping[tuple[str, Arm, int], Mapping[str, Any]]


def difference(outcomes: Outcomes, case: Case, arm: Arm, seeds: Sequence[int]) -> list[float]:
    """The final loss of an arm minus that of the clean twin, for each seed."""
    twin = case.twin_name
    return [
        outcomes[case.name, arm, seed]["loss"] - outcomes[twin, Arm.CLEAN, seed]["loss"]
        for seed in seeds
    ]


def upper_bound(values: Sequence[float]) -> float:
    """Of the mean, one-sided 95 %; NaN if a value is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    degrees = len(values) - 1
    quantile = _T95[degrees] if degrees < len(_T95) else 1.70
    return statistics.fmean(values) + quantile * statistics.stdev(values) / math.sqrt(len(values))


def fault_row(outcomes: Outcomes, case: Case, seeds: Sequence[int]) -> list[object]:
    """One row of the table of faults."""
    recovered = [outcomes[case.name, Arm.RECOVER, seed] for seed in seeds]
    apart = difference(outcomes, case, Arm.RECOVER, seeds)
    endings = {str(run["ended"]).split(" at ")[0] for run in recovered} - {"done"}
    acts = {act.split(" ", 1)[1] for run in recovered for act in run["acts"]}
    exact = sum(value == 0 for value in apart)
    return [
        case.name,
        case.clock,
        *(
            _mean(difference(outcomes, case, arm, seeds))
            for arm in (Arm.UNGUARDED, Arm.PROTECT, Arm.BY_HAND)
        ),
        _mean(apart),
        f"{upper_bound(apart):+.3f}",
        f"{exact}/{len(seeds)}",
        statistics.median(run["steps_lost"] for run in recovered),
        ", ".join(sorted(acts | endings)) or "none",
    ]


def healthy_row(outcomes: Outcomes, case: Case, seeds: Sequence[int]) -> list[object]:
    """One row of the table of healthy runs."""
    runs = [outcomes[case.name, Arm.RECOVER, seed] for seed in seeds]
    apart = difference(outcomes, case, Arm.RECOVER, seeds)
    acts = [act for run in runs for act in run["acts"]]
    return [
        case.name,
        len(runs),
        sum(len(run["rollbacks"]) for run in runs),
        len(acts),
        f"{max(map(abs, apart)):.4f}",
        sum(run["decisions"] for run in runs),
        sum(run["mismatches"] for run in runs),
    ]


def _mean(values: Sequence[float]) -> str:
    bad = sum(not math.isfinite(value) for value in values)
    return f"{statistics.fmean(values):+.3f}" if not bad else f"lost {bad}/{len(values)}"
