"""Differences to the clean twin with their bounds, and the tables."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.recover.arms import Arm
from benchmarks.recover.cases import Case

BOUND = 0.02
"""Nats: the upper 95 % bound of the mean paired difference of the final held-out loss."""

MAX_LOST = 30
"""Steps: the median over seeds."""

SEEN_STEPS = 64
"""Steps after which bad data should have been seen."""

_T95 = (math.nan, 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""One-sided 95 % quantiles of Student's t, by degrees of freedom."""

Outcomes = Mapping[tuple[str, Arm, int], Mapping[str, Any]]


def difference(outcomes: Outcomes, case: Case, arm: Arm, seeds: Sequence[int]) -> list[float]:
    """The final loss of an arm minus that of the clean twin, for each seed that has both."""
    return _apart(outcomes, (case.name, arm), (case.twin_name, Arm.CLEAN), seeds)


def against_constant_rate(outcomes: Outcomes, case: Case, seeds: Sequence[int]) -> str:
    """The recovering run against a constant rate, in one sentence; "" if there is none."""
    apart = _apart(outcomes, (case.name, Arm.RECOVER), (case.name, Arm.CONSTANT_RATE), seeds)
    if not apart:
        return ""
    return (
        f"{case.name} against a constant rate from the onset on: {_mean(apart)}, bound "
        f"{upper_bound(apart):+.3f} (bar {BOUND})."
    )


def first_act(outcomes: Outcomes, case: Case, seeds: Sequence[int]) -> str:
    """How soon something was done about bad data, in one sentence; "" if there is no run."""
    runs = _runs(outcomes, case, seeds)
    if not runs:
        return ""
    acts = [(int(run["acts"][0].split(" ", 1)[0]), run["onset"]) for run in runs if run["acts"]]
    steps = sorted(step - onset for step, onset in acts)
    soon = sum(0 <= step <= SEEN_STEPS for step in steps)
    return (
        f"{case.name}: acted on in {len(steps)} of {len(runs)} runs, {', '.join(map(str, steps))} "
        f"steps after the onset; within {SEEN_STEPS} steps in {soon} (bar: all)."
    )


def needs_twin(outcome: Mapping[str, Any]) -> bool:
    """Whether a healthy run may differ from its twin."""
    return bool(outcome["rollbacks"] or outcome["acts"] or outcome["ended"] != "done")


def _apart(
    outcomes: Outcomes, one: tuple[str, Arm], other: tuple[str, Arm], seeds: Sequence[int]
) -> list[float]:
    return [
        outcomes[*one, seed]["loss"] - outcomes[*other, seed]["loss"]
        for seed in seeds
        if (*one, seed) in outcomes and (*other, seed) in outcomes
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
    recovered = _runs(outcomes, case, seeds)
    apart = difference(outcomes, case, Arm.RECOVER, seeds)
    # Of runs that ended, the final loss is not known: they are counted, not averaged.
    finished = [value for value in apart if math.isfinite(value)]
    bound = upper_bound(finished)
    lost = statistics.median(run["steps_lost"] for run in recovered)
    exact = sum(value == 0 for value in apart)
    return [
        case.name,
        case.clock,
        *(
            _mean(difference(outcomes, case, arm, seeds))
            for arm in (Arm.UNGUARDED, Arm.PROTECT, Arm.BY_HAND)
        ),
        _mean(apart),
        f"{bound:+.3f}" if math.isfinite(bound) else "-",
        f"{exact}/{len(apart)}",
        f"{lost:g}",
        _acts(recovered),
        _is_met(case, bound, lost, exact, len(apart), recovered),
    ]


def healthy_row(outcomes: Outcomes, case: Case, seeds: Sequence[int]) -> list[object]:
    """One row of the table of healthy runs."""
    runs = _runs(outcomes, case, seeds)
    apart = difference(outcomes, case, Arm.RECOVER, seeds)
    acts = [act.split(" ", 1)[1] for run in runs for act in run["acts"]]
    return [
        case.name,
        len(runs),
        sum(len(run["rollbacks"]) for run in runs),
        sum(act not in ("restore", "hold") for act in acts),
        sum("lower" in act for act in acts),
        sum(str(run["ended"]) != "done" for run in runs),
        f"{max(map(abs, apart)):.4f} [{len(apart)}]",
    ]


def healthy_sum(outcomes: Outcomes, cases: Sequence[Case], seeds: Sequence[int]) -> list[object]:
    """The row of all healthy runs together."""
    rows = [healthy_row(outcomes, case, seeds) for case in cases]
    sums = [sum(int(str(row[place])) for row in rows) for place in range(1, 6)]
    return ["all", *sums, max(str(row[6]).split()[0] for row in rows)]


def has_run(outcomes: Outcomes, case: Case, seeds: Sequence[int]) -> bool:
    """Whether there is a recovering run of a case with its twin."""
    return bool(difference(outcomes, case, Arm.RECOVER, seeds))


def _runs(outcomes: Outcomes, case: Case, seeds: Sequence[int]) -> list[Mapping[str, Any]]:
    keys = [(case.name, Arm.RECOVER, seed) for seed in seeds]
    return [outcomes[key] for key in keys if key in outcomes]


def _acts(runs: Sequence[Mapping[str, Any]]) -> str:
    """What was done, and in how many of the runs; how runs ended that were not done."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update({act.split(" ", 1)[1] for act in run["acts"]})
        if run["ended"] != "done":
            rank = re.search(r"rank \d+ differs", str(run["ended"]))
            named = f" ({rank[0]})" if rank else ""
            counts[str(run["ended"]).split(" at ")[0].split(":")[0] + named] += 1
    return ", ".join(f"{act} {count}" for act, count in counts.items()) or "none"


def _is_met(
    case: Case,
    bound: float,
    lost: float,
    exact: int,
    count: int,
    runs: Sequence[Mapping[str, Any]],
) -> str:
    """Which bars are met."""
    if case.is_late:
        if not case.expected:
            return ""
        num_met = sum(_does(run, case.expected) for run in runs)
        return f"{'yes' if num_met == len(runs) else 'NO'}: {case.expected} {num_met}/{len(runs)}"
    parts = {"bound": bound <= BOUND, "lost": lost <= MAX_LOST}
    if case.is_exact:
        parts["exact"] = exact == count
    parts["finished"] = all(math.isfinite(run["loss"]) for run in runs)
    missed = [name for name, is_met in parts.items() if not is_met]
    return f"NO: {', '.join(missed)}" if missed else "yes"


def _does(run: Mapping[str, Any], expected: str) -> bool:
    """Whether a run did what is expected of it, or ended like that."""
    acts = [act.split(" ", 1)[1] for act in run["acts"]]
    return expected in acts or str(run["ended"]).startswith(expected)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return f"lost {len(values)}/{len(values)}"
    gone = f", lost {len(values) - len(finite)}" if len(finite) < len(values) else ""
    return f"{statistics.fmean(finite):+.3f} [{len(finite)}]{gone}"
