"""Random schedules on four ranks: nobody waits for ever, all ranks decide the same."""

import logging
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit.rank_schedules import check_agreement, make_schedule
from tests.kit.tiny import journal_of

from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table

MODES = ("observe", "protect", "recover")


def measure(seed: int) -> dict[str, Any]:
    """Follow one schedule; return what went wrong, if anything did, and what was undone."""
    schedule = make_schedule(seed)
    problem = ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_agreement(seed, Path(folder))
        except AssertionError as error:
            problem = str(error)[:2000] or "assertion"
        run = Path(folder) / "run"
        events = journal_of(run).events if run.exists() else ()
    return {
        "problem": problem,
        "mode": schedule.mode,
        "leaves": schedule.leaves is not None,
        "terminated": schedule.terminated is not None,
        "slow": bool(schedule.slow),
        "bug": schedule.bug is not None,
        "flips": len(schedule.flips),
        "undos": sum(event.kind == "undo" for event in events),
    }


def publish_schedules(number: int, folder: str | None, seconds: float) -> None:
    """Follow schedules until there are so many, or the time is up."""
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(folder or spare))
        found = [
            cache.get(f"schedule {seed}", partial(measure, seed))
            for seed in range(number)
            if time.monotonic() < end or cache.has(f"schedule {seed}")
        ]
    rows = []
    for mode in MODES:
        mine = [outcome for outcome in found if outcome["mode"] == mode]
        counts = [
            sum(bool(o[what]) for o in mine) for what in ("leaves", "terminated", "slow", "bug")
        ]
        problems = sum(bool(outcome["problem"]) for outcome in mine)
        rows.append((mode, len(mine), *counts, sum(o["undos"] for o in mine), problems))
    header = (
        *("mode", "schedules", "a rank leaves", "SIGTERM", "slow ranks", "bug of ours"),
        *("undos", "deadlock or disagreement"),
    )
    failed = sum(bool(outcome["problem"]) for outcome in found)
    publish(
        "Recover: schedules on four ranks",
        f"scripts/bench recover schedules --schedules {number}",
        f"{len(found)} random schedules (bar: {number}) on 4 ranks with DDP: NaN on one rank, "
        "steps that are not recorded or left out, a rank that leaves, SIGTERM, slow ranks, "
        "asynchronous saves, collectives of another thread, an audit of trimtab that fails on one "
        "rank, bits that flip and undos that are asked for at any step. Bar: no deadlock, all "
        f"ranks end at the same step with the same weights.\n\n{table(header, rows)}",
        [("deadlocks and disagreements", f"{failed} of {len(found)} schedules", 0)],
    )
