"""Measure long runs and many runs: `scripts/bench scale [FOLDER] [--steps N]`; 8 GB of disk.

Writes a journal of 5,000,000 steps with 200 signals and measures the time and the peak memory of
each command on it, and of a resume; then a server with 1,000 runs. FOLDER keeps the journals and
what was measured, so that the commands can be measured one by one (--only); delete its `costs`
folder to measure again. Published once all of 5,000,000 steps is there.
"""

import argparse
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table
from benchmarks.scale.commands import commands
from benchmarks.scale.long_run import SIGNALS, open_long_run, write_short_run
from benchmarks.scale.processes import MAX_MB, Cost, processor_seconds, read_address, start, wait
from trimtab.journal import RunDirectory

STEPS = 5_000_000
HEADER = ("what", "seconds", "bar", "peak MB", "bar", "met")


RUNS, RECORDS = 1_000, 1_000
WATCHED_SECONDS = 20.0


def measure_fleet(folder: Path) -> tuple[list[Cost], float]:
    """Start-up and page of the fleet, and the share of a core that following it takes."""
    for number in range(RUNS):
        run = RunDirectory(folder / f"run-{number:04d}")
        if not run.exists():
            write_short_run(run, RECORDS, number)
    begin = time.monotonic()
    command = ["trimtab", "observe", str(folder), "--web", "--address", "127.0.0.1:0"]
    process = start(command, stdout=subprocess.PIPE)
    address = read_address(process)
    started = time.monotonic() - begin
    begin = time.monotonic()
    with urllib.request.urlopen(address, timeout=600) as reply:
        size = len(reply.read())
    page = time.monotonic() - begin
    before = processor_seconds(process.pid)
    time.sleep(WATCHED_SECONDS)
    share = (processor_seconds(process.pid) - before) / WATCHED_SECONDS
    process.send_signal(signal.SIGINT)
    _, used = wait(process)
    peak = used.ru_maxrss / 1024
    costs = [
        Cost(what=f"observe --web: start with {RUNS:,} runs", seconds=started, peak_mb=peak),
        Cost(
            what=f"observe --web: the page of all, {size / 1e6:.1f} MB", seconds=page, peak_mb=peak
        ),
    ]
    return costs, share


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", help="commands whose names contain this; `fleet` for the server")
    arguments = parser.parse_args()
    steps, only = arguments.steps, arguments.only
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        if only != "fleet":
            rows = _measure(folder, steps, only or "")
            if rows is not None and steps == STEPS:
                worst = max(float(row[3].strip("*")) for row in rows)
                what = f"memory of any command, {steps:,} x {SIGNALS}"
                headline = (what, f"{worst:.0f} MB", f"{MAX_MB} MB")
                body = _long_text(steps, rows)
                publish("Scale: a long run", "scripts/bench scale", body, [headline])
        if only is None or only == "fleet":
            costs, share = measure_fleet(folder / f"fleet-{RUNS}")
            rows = [cost.row() for cost in costs]
            publish("Scale: many runs", "scripts/bench scale --only fleet", _fleet(rows, share))


def _measure(folder: Path, steps: int, only: str) -> list[list[str]] | None:
    """The table, measured where it is not known; None if some of it is missing."""
    run = open_long_run(folder, steps)
    cache = ResultCache(folder / f"costs-{steps}")
    known = []
    tries = commands(run, steps)
    for what, attempt in tries.items():
        if only in what or cache.has(what):
            known.append(Cost(**cache.get(what, partial(_as_dict, attempt))))
    return [cost.row() for cost in known] if len(known) == len(tries) else None


def _as_dict(attempt: Callable[[], Cost]) -> dict[str, Any]:
    return asdict(attempt())


def _long_text(steps: int, rows: list[list[str]]) -> str:
    return (
        f"A journal of {steps:,} records with {SIGNALS} signals, 8 GB on disk; in memory it would "
        "be as large. Peak: the largest resident memory of the process.\n\n" + table(HEADER, rows)
    )


def _fleet(rows: list[list[str]], share: float) -> str:
    return (
        f"{RUNS:,} runs of {RECORDS:,} records in one folder, all ended. Following them takes "
        f"{100 * share:.1f} % of a core (over {WATCHED_SECONDS:.0f} s).\n\n" + table(HEADER, rows)
    )


if __name__ == "__main__":
    main()
