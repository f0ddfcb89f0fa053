"""Recovery in the lab: `scripts/bench recover FOLDER [--seeds 0,1,5] [--cases F13w,F02]`.

Outcomes are kept in FOLDER, one per fault, arm and seed, with the journals of recovering runs: a
measurement can be continued. With `--minutes N` no run begins later, and what is there is
published; with `--no-publish` the tables are only printed.
"""

import argparse
import logging
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks.recover.again import Again, compute_again
from benchmarks.recover.arms import Arm, measure
from benchmarks.recover.cases import FAULTS, HEALTHY, STEPS, Case
from benchmarks.recover.figures import (
    BOUND,
    MAX_LOST,
    Outcomes,
    against_constant_rate,
    fault_row,
    first_act,
    has_run,
    healthy_row,
    healthy_sum,
    needs_twin,
)
from benchmarks.recover.pictures import draw
from benchmarks.recover.plan import FAULT_SEEDS, jobs
from benchmarks.result_cache import Outcome, ResultCache
from benchmarks.results import publish, table

TUNE_SEEDS = (0, 1, 5, 6)
"""Settings were chosen on these; a claim needs others."""

_FAULT_COLUMNS = (
    *("fault", "goes by", Arm.UNGUARDED, Arm.PROTECT, Arm.BY_HAND, Arm.RECOVER),
    *("bound", "exact", "lost", "acts (runs)", "bars met"),
)
_HEALTHY_COLUMNS = (
    *("healthy run", "runs", "rollbacks", "acts with skip or stop", "LR lowered", "ended early"),
    "largest difference",
)


def main() -> None:
    """Measure what is missing, and publish."""
    arguments = _arguments()
    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)  # the acts are in the outcomes
    seeds = _seeds(arguments.seeds)
    names = set(arguments.cases.split(",")) if arguments.cases else None
    faults = [case for case in FAULTS if names is None or case.name in names]
    healthy = [case for case in HEALTHY if names is None or case.name in names]
    cache, journals = ResultCache(arguments.folder), arguments.folder / "journals"
    outcomes: dict[tuple[str, Arm, int], Outcome] = {}
    ends = time.monotonic() + 60 * arguments.minutes
    for case, arm, seed in jobs(faults, healthy, seeds):
        shared = case.twin_name if arm in (Arm.CLEAN, Arm.BY_HAND) else case.name
        name = f"{shared} {arm} seed {seed}"
        if time.monotonic() > ends and not cache.has(name):
            continue
        outcome = cache.get(name, partial(_measure, case, arm, seed, journals / name))
        outcomes[shared, arm, seed] = outcomes[case.name, arm, seed] = outcome
        if case.is_healthy and arm is Arm.RECOVER and needs_twin(outcome):
            twin = f"{shared} {Arm.CLEAN} seed {seed}"
            outcomes[case.name, Arm.CLEAN, seed] = cache.get(
                twin, partial(_measure, case, Arm.CLEAN, seed, journals / twin)
            )
    body = _body(outcomes, faults, healthy, seeds, compute_again(journals))
    if arguments.publish:
        draw(outcomes, faults, seeds)
        publish("Recovery in the lab", "scripts/bench recover", body)
    else:
        print(body)


def _seeds(text: str) -> list[int]:
    """Seeds such as "0,1,5" or "112..136"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


def _measure(case: Case, arm: Arm, seed: int, journal: Path) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        outcome = measure(case, arm, seed, run)
        if arm is Arm.RECOVER:  # its decisions are computed again later
            shutil.rmtree(journal, ignore_errors=True)
            shutil.copytree(run / "trimtab", journal / "trimtab")
        return outcome


def _body(
    outcomes: Outcomes, faults: list[Case], healthy: list[Case], seeds: list[int], again: Again
) -> str:
    head = (
        f"Runs of {STEPS} steps, seeds {min(seeds)} to {max(seeds)}, of which faults have the "
        f"first {FAULT_SEEDS}"
        f"{' (tuning seeds: no claim)' if set(seeds) <= set(range(31)) else ''}. Figures are the "
        "held-out loss at the end minus that of the clean twin, in nats, as a mean over [n] seeds; "
        "lost: runs that ended or are NaN. By hand: a restart 200 steps later, without the cause. "
        f"Bound: the upper 95 % bound of recover's mean (bar {BOUND}). Exact: the same final loss "
        "as the twin to the last bit, in how many runs; the bar is all of them where the remedy is "
        f"a restore without skip. Lost: median of the steps done again (bar {MAX_LOST}).\n\n"
    )
    parts = [head]
    known = [case for case in faults if has_run(outcomes, case, seeds)]
    if known:
        parts.append(table(_FAULT_COLUMNS, [fault_row(outcomes, case, seeds) for case in known]))
    parts += [
        f"\n\n{line}" for case in faults if (line := against_constant_rate(outcomes, case, seeds))
    ]
    garbage = [case for case in faults if case.kind == "F04"]
    parts += [f"\n\n{line}" for case in garbage if (line := first_act(outcomes, case, seeds))]
    calm = [case for case in healthy if has_run(outcomes, case, seeds)]
    if calm:
        parts.append(
            "\n\nHealthy runs and runs that look like a fault; bar over 200 runs: no skip, no "
            "lower rate, no stop, at most 2 rollbacks, final loss within 0.005 of that in "
            "`protect` [runs compared: those in which something was done, and the first seeds; "
            "the others have the same bits].\n\n"
            + table(
                _HEALTHY_COLUMNS,
                [
                    *(healthy_row(outcomes, case, seeds) for case in calm),
                    healthy_sum(outcomes, calm, seeds),
                ],
            )
        )
    parts.append(
        f"\n\nDecisions computed again from the files of {again.runs} runs: {again.decisions}, of "
        f"which {again.different} differ from those taken and {again.not_in_journal} are not in "
        "the journal (bar: 0 and 0, over 200 runs)."
    )
    return "".join(parts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench recover", description=__doc__)
    parser.add_argument("folder", type=Path, help="where outcomes are kept")
    parser.add_argument("--seeds", default=",".join(map(str, TUNE_SEEDS)))
    parser.add_argument("--cases", default="", help="names, such as F13w,F02,clean; default: all")
    parser.add_argument("--minutes", type=float, default=1e6, help="no run begins later")
    parser.add_argument("--no-publish", dest="publish", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    main()
