"""Recovery in the lab: `scripts/bench recover FOLDER [--seeds 0,1,5] [--cases F13w,F02]`.

Outcomes are kept in FOLDER, one per fault, arm and seed: a measurement can be continued. With
`--no-publish` the tables are only printed.
"""

import argparse
import logging
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.recover.arms import Arm, measure
from benchmarks.recover.cases import FAULTS, HEALTHY, STEPS, Case
from benchmarks.recover.figures import BOUND, MAX_LOST, Outcomes, fault_row, healthy_row
from benchmarks.result_cache import Outcome, ResultCache
from benchmarks.results import publish, table

TUNE_SEEDS = (0, 1, 5, 6)
"""Settings were chosen on these; a claim needs others."""

_HEALTHY_COLUMNS = (
    *("healthy run", "runs", "rollbacks", "acts", "largest difference"),
    *("decisions", "not the same when computed again"),
)
_FAULT_ARMS = (Arm.UNGUARDED, Arm.PROTECT, Arm.BY_HAND, Arm.RECOVER)


def main() -> None:
    """Measure what is missing, and publish."""
    arguments = _arguments()
    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)  # the acts are in the outcomes
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    names = set(arguments.cases.split(",")) if arguments.cases else None
    faults = [case for case in FAULTS if names is None or case.name in names]
    healthy = [case for case in HEALTHY if names is None or case.name in names]
    cache = ResultCache(arguments.folder)
    outcomes: dict[tuple[str, Arm, int], Outcome] = {}
    for case, arm, seed in _jobs(faults, healthy, seeds):
        key = (case.twin_name if arm in (Arm.CLEAN, Arm.BY_HAND) else case.name, arm, seed)
        if key not in outcomes:
            job = partial(_measure, case, arm, seed)
            outcomes[key] = cache.get(f"{key[0]} {arm} seed {seed}", job)
        outcomes[case.name, arm, seed] = outcomes[key]
    body = _body(outcomes, faults, healthy, seeds)
    if arguments.publish:
        publish("Recovery in the lab", "scripts/bench recover", body)
    else:
        print(body)


def _jobs(faults: list[Case], healthy: list[Case], seeds: list[int]) -> list[tuple[Case, Arm, int]]:
    """All runs, those of one seed together."""
    return [
        (case, arm, seed)
        for seed in seeds
        for cases, arms in ((faults, _FAULT_ARMS), (healthy, (Arm.RECOVER,)))
        for case in cases
        for arm in (Arm.CLEAN, *arms)
    ]


def _measure(case: Case, arm: Arm, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        return measure(case, arm, seed, Path(name) / "run")


def _body(outcomes: Outcomes, faults: list[Case], healthy: list[Case], seeds: list[int]) -> str:
    head = (
        f"Runs of {STEPS} steps, seeds {', '.join(map(str, seeds))}"
        f"{' (tuning seeds: no claim)' if set(seeds) <= set(range(31)) else ''}. Figures are the "
        "held-out loss at the end minus that of the clean twin, in nats, as a mean over seeds; "
        f"bound: its upper 95 % bound (bar {BOUND}). Exact: same final loss as the twin to the "
        f"last bit. Lost: median steps done again (bar {MAX_LOST}).\n\n"
    )
    columns = ("fault", "goes by", *_FAULT_ARMS, "bound", "exact", "lost", "acts")
    parts = [head]
    if faults:
        parts.append(table(columns, [fault_row(outcomes, case, seeds) for case in faults]))
    if healthy:
        rows = [healthy_row(outcomes, case, seeds) for case in healthy]
        parts.append("\n\n" + table(_HEALTHY_COLUMNS, rows))
    return "".join(parts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench recover", description=__doc__)
    parser.add_argument("folder", type=Path, help="where outcomes are kept")
    parser.add_argument("--seeds", default=",".join(map(str, TUNE_SEEDS)))
    parser.add_argument("--cases", default="", help="names, such as F13w,F02,clean; default: all")
    parser.add_argument("--no-publish", dest="publish", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    main()
