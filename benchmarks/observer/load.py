"""Processor time and memory of an observer: one fast run, and 500 slow ones on one core."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.results import publish, table
from benchmarks.scale.processes import processor_seconds
from trimtab.journal import JournalWriter, RunDirectory

RUNS = 500


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench observer load")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    rows = [
        ["1 run at 1,000 steps a second", *_measure(1, 1000.0, given.seconds)],
        [f"{RUNS} runs at 1 step a second", *_measure(RUNS, 1.0, given.seconds)],
    ]
    header = ["observed", "share of a core", "memory at most", "records judged"]
    body = (
        f"`trimtab observe`, {given.seconds:.0f} s after it has caught up; each record has loss, "
        "gradient norm, learning rate and clock.\n\n"
    ) + table(header, rows)
    print(body)
    if not given.dry:
        publish("Observer: cost outside of the run", "scripts/bench observer load", body)


def _measure(num_runs: int, rate: float, seconds: float) -> list[str]:
    """Write runs at a rate while one process observes them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journals = [JournalWriter(RunDirectory(folder / f"run-{n:03d}")) for n in range(num_runs)]
        draw = np.random.default_rng(0)
        steps = [0] * num_runs

        def write(count: int) -> None:
            for number, journal in enumerate(journals):
                for _ in range(count):
                    noise = float(draw.normal())
                    values = {"loss": 3.0 + 0.02 * noise, "grad_norm": 1.0 + 0.05 * noise}
                    values |= {"lr": 1e-3, "clock": time.time()}
                    journal.append(steps[number], values)
                    steps[number] += 1

        write(100)
        command = [sys.executable, "-m", "trimtab.cli", "observe", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        interval = 0.1 if rate >= 10 else 1.0 / rate
        _write_for(max(15.0, num_runs / 20), interval, rate, write)  # it catches up
        before, records = processor_seconds(process.pid), sum(steps)
        took = _write_for(seconds, interval, rate, write)
        share = (processor_seconds(process.pid) - before) / took
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        process.terminate()
        process.wait()
        for journal in journals:
            journal.close("finished", seconds=1.0)
        judged = sum(steps) - records
        return [f"{100 * share:.1f} %", f"{int(peak) / 1024:,.0f} MB", f"{judged:,}"]


def _write_for(seconds: float, interval: float, rate: float, write: object) -> float:
    began = time.monotonic()
    count = max(round(rate * interval), 1)
    turn = 0
    while time.monotonic() - began < seconds:
        write(count)  # type: ignore[operator]
        turn += 1
        time.sleep(max(began + turn * interval - time.monotonic(), 0.0))
    return time.monotonic() - began


if __name__ == "__main__":
    main()
