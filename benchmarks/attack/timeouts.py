"""A rank comes later than the others wait, at the moment of a bad step: do the ranks stay equal?"""

import argparse
import logging
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit.late_ranks import (
    ENGINES,
    OUTER_STEPS,
    broken_promise,
    draw_schedule,
    follow_late_schedule,
    inner_steps,
    local_sgd,
)
from tests.kit.launch import ends_of_ranks
from tests.kit.user_loop import without_paths

from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table

MODES = ("protect", "recover")
LOCAL_MODES = ("observe", "protect", "recover")
LOCAL_SECONDS = 15.0
"""How long local SGD of two ranks may take. Chosen: seconds, where a wait takes minutes; without a
guard it takes less than one."""


def main() -> None:
    """Follow the schedules and publish what became of the ranks."""
    parser = argparse.ArgumentParser(prog="scripts/bench attack timeouts")
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first schedule")
    parser.add_argument("--folder", help="where outcomes are kept, to go on later")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    logging.getLogger("trimtab").addHandler(logging.NullHandler())
    seeds = range(given.first, given.first + given.schedules)
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(given.folder or spare))
        found = [cache.get(f"late {seed}", partial(measure, seed)) for seed in seeds]
        alone = [cache.get(f"local {mode}", partial(measure_local, mode)) for mode in LOCAL_MODES]
    report(found, alone, is_dry=given.dry)


def measure(seed: int) -> dict[str, Any]:
    """Follow one schedule; return what went wrong, and how each rank ended."""
    schedule = draw_schedule(seed)
    with tempfile.TemporaryDirectory() as folder:
        ends = follow_late_schedule(schedule, Path(folder))
    problem = broken_promise(schedule, ends)
    print(f"schedule {seed}, {schedule.engine}, {schedule.mode}: {problem or 'kept'}", flush=True)
    return {
        **asdict(schedule),
        "seed": seed,
        "problem": problem,
        "endings": [None if end.result is None else asdict(end.result) for end in ends],
    }


def measure_local(mode: str) -> dict[str, Any]:
    """Let two ranks step unequally often; return what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        ends = ends_of_ranks(local_sgd, 2, mode, Path(folder))
    problem = ""
    if any(end.result is None for end in ends):
        problem = "; ".join(
            f"rank {rank} hung" if end.code is None else f"rank {rank}: {_last_line(end.error)}"
            for rank, end in enumerate(ends)
            if end.result is None
        )
    elif not all(end.result.is_same for end in ends):
        problem = "other weights than without a guard"
    elif max(end.result.seconds for end in ends) > LOCAL_SECONDS:
        problem = f"{max(end.result.seconds for end in ends):.0f} s"
    elif max(len(end.result.log) for end in ends) != 1:
        problem = f"said {[len(end.result.log) for end in ends]} times"
    print(f"local SGD, {mode}: {problem or 'kept'}", flush=True)
    return {"mode": mode, "problem": problem}


def report(found: list[dict[str, Any]], alone: list[dict[str, Any]], *, is_dry: bool) -> None:
    """Publish the counts."""
    rows = []
    for engine in ENGINES:
        for mode in MODES:
            mine = [one for one in found if (one["engine"], one["mode"]) == (engine, mode)]
            diverged = sum("silently" in one["problem"] for one in mine)
            hung = sum("hung" in one["problem"] for one in mine)
            broken = sum(bool(one["problem"]) for one in mine)
            ended = sum(not one["problem"] and _has_ended(one) for one in mine)
            kept = len(mine) - broken
            otherwise = broken - diverged - hung
            rows.append((engine, mode, len(mine), kept, ended, diverged, hung, otherwise))
    header = (
        *("engine", "mode", "schedules", "kept", "of these ended by a sentence"),
        *("different states in silence", "hung", "ended otherwise"),
    )
    local = ", ".join(f"{one['mode']}: {one['problem'] or 'kept'}" for one in alone)
    steps = " and ".join(str(inner_steps(rank)) for rank in range(2))
    body = (
        f"{len(found)} random schedules on 2 and 4 ranks. One rank comes later than "
        "`live.rank_timeout_seconds` (1 to 2 s); at that step, or one before or after, the "
        "loss, the gradient or the batch of one rank is bad. Bar: all ranks end with the state of "
        "one and the same run without a late rank, or with equal weights, or the rank with bad "
        f"numbers ends the run by a sentence.\n\n{table(header, rows)}\n\n"
        f"Local SGD with {steps} steps on two ranks between {OUTER_STEPS} averages, default "
        f"settings; bar: the weights of a run without a guard within {LOCAL_SECONDS:.0f} s, said "
        f"once. {local}."
    )
    broken = sum(bool(one["problem"]) for one in found)
    failed = sum(bool(one["problem"]) for one in alone)
    headlines = [
        ("schedules with a late rank that part in silence or hang", f"{broken} of {len(found)}", 0),
        ("modes in which ranks that step unequally wait", f"{failed} of {len(alone)}", 0),
    ]
    command = f"scripts/bench attack timeouts --schedules {len(found)}"
    publish("Live: ranks that come too late", command, body, headlines, is_dry=is_dry)


def _last_line(trace: str) -> str:
    return without_paths(trace.strip().splitlines()[-1])[:80]


def _has_ended(outcome: dict[str, Any]) -> bool:
    return any(ending["kind"] == "sentence" for ending in outcome["endings"])


if __name__ == "__main__":
    main()
