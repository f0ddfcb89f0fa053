"""Measure long runs and many runs: `scripts/bench scale [FOLDER] [--steps N]`; 8 GB of disk.

Writes a journal of 5,000,000 steps with 200 signals and measures the time and the peak memory of
each command on it, and of a resume; then a server with 1,000 runs. FOLDER keeps the journals for
the next time. With fewer steps, or with --only, the result is printed and not published.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.results import publish, table
from benchmarks.scale.commands import measure
from benchmarks.scale.long_run import SIGNALS, open_long_run
from benchmarks.scale.many_runs import RECORDS, RUNS, WATCHED_SECONDS, measure_fleet

STEPS = 5_000_000
HEADER = ("what", "seconds", "bar", "peak MB", "bar", "met")


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
            costs = measure(open_long_run(folder, steps), steps, only or "")
            rows = [cost.row() for cost in costs]
            if only or steps != STEPS:
                print(table(HEADER, rows))
            else:
                publish("Scale: a long run", "scripts/bench scale", _long_text(steps, rows))
        if only is None or only == "fleet":
            costs, share = measure_fleet(folder / f"fleet-{RUNS}")
            rows = [cost.row() for cost in costs]
            publish("Scale: many runs", "scripts/bench scale --only fleet", _fleet(rows, share))


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
