"""SIGKILL at random moments and a relaunch: no step is lost, none is trained twice."""

import logging
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit.killed_runs import LAYOUTS, survive_kills

from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table

FIRST_SEED = 40
"""The slow tests have other seeds."""


def measure(name: str, kills: int) -> dict[str, Any]:
    """Kill runs of one layout so often; return what went wrong, if anything did."""
    began, problem = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            survive_kills(Path(folder), LAYOUTS[name], kills, FIRST_SEED)
        except AssertionError as error:
            problem = str(error)[:2000] or "assertion"
    return {"problem": problem, "seconds": time.monotonic() - began}


def publish_kills(kills: int, folder: str | None, only: Sequence[str]) -> None:
    """Kill runs of every layout."""
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(folder or spare))
        rows = []
        for name in only or LAYOUTS:
            found = cache.get(f"{name} {kills}", partial(measure, name, kills))
            rows.append((name, LAYOUTS[name].world, kills, found["problem"] or "none"))
    publish(
        "Recover: SIGKILL and relaunch",
        f"scripts/bench recover kills --kills {kills}",
        f"{kills} SIGKILLs a layout, at random moments, also while a checkpoint is written; ranks "
        "die one after the other. Bar: the run is launched again from a verified checkpoint, every "
        "batch is trained on exactly once in the line of steps that leads to the end, and the "
        "final weights have the bits of a run that was never killed.\n\n"
        + table(("layout", "ranks", "kills", "problems"), rows),
        [(f"layouts with a problem, of {len(rows)}", sum(row[3] != "none" for row in rows), 0)],
    )
