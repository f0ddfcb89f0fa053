"""One server for a folder of many runs."""

import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from benchmarks.scale.long_run import write_short_run
from benchmarks.scale.processes import Cost, processor_seconds, read_address, start, wait
from trimtab.journal import RunDirectory

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
