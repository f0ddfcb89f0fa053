"""Runs that are long: `scripts/bench scale [FOLDER]`; needs 8 GB of disk.

Writes a journal of 5,000,000 steps with 200 signals and measures the time and the peak memory of
each command on it, and of a resume. FOLDER keeps the journal for the next time.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.results import publish, table
from trimtab.core.block import Block, Column
from trimtab.core.config import JournalConfig
from trimtab.journal import RunDirectory
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.write.sealed_segment import write_segment

STEPS, SIGNALS = 5_000_000, 200
SPIKES = (1_250_000, 3_750_000)
MAX_MB, MAX_RESUME_SECONDS = 500, 10
FAMILIES = ("param_norm", "update_norm", "activation_rms", "grad_norm", "adam_v_norm")

RESUME = """
import sys, time, torch, trimtab
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
begin = time.monotonic()
guard = trimtab.watch(model, optimizer, run_dir=sys.argv[1], step=int(sys.argv[2]))
print("seconds", time.monotonic() - begin)
with guard:
    for _ in range(3):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        guard.record(loss=loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one command took."""

    what: str
    seconds: float
    peak_mb: float
    seconds_bar: float | None = None

    def row(self) -> list[str]:
        """The line of the table."""
        is_met = self.peak_mb <= MAX_MB and (
            self.seconds_bar is None or self.seconds <= self.seconds_bar
        )
        bar = "" if self.seconds_bar is None else f"{self.seconds_bar:g}"
        return [
            self.what,
            f"{self.seconds:.1f}",
            bar,
            f"**{self.peak_mb:.0f}**",
            f"{MAX_MB}",
            "yes" if is_met else "NO",
        ]


def write_run(run: RunDirectory) -> None:
    """A journal as a run of 58 days leaves it, with two spikes."""
    rng = np.random.default_rng(0)
    size = JournalConfig().segment_records
    run.journal.mkdir(parents=True)
    names = [f"{FAMILIES[k % 5]}/blocks.{k // 5}" for k in range(SIGNALS - 4)]
    for index, start in enumerate(range(0, STEPS, size)):
        rows = np.arange(start, min(start + size, STEPS))
        loss = 2.0 + 3.0 * np.exp(-rows / 2e5) + 0.02 * rng.normal(size=len(rows))
        for spike in SPIKES:
            loss += 4.0 * ((rows >= spike) & (rows < spike + 10))
        columns = {
            "loss": Column.complete(loss),
            "grad_norm": Column.complete(np.exp(0.1 * rng.normal(size=len(rows)))),
            "lr": Column.complete(np.full(len(rows), 3e-4, dtype=np.float64)),
            "clock": Column.complete(1.7e9 + rows.astype(np.float64)),
        }
        for name in names:
            columns[name] = Column.complete(1.0 + 1e-4 * rng.normal(size=len(rows)))
        entries = [{"kind": "segment", "schema": 1, "index": index, "qualities": {}}]
        if start + size >= STEPS:
            entries.append({"kind": "end", "how": "finished"})
        block = Block.from_columns(columns, step=rows, tick=rows)
        write_segment(JournalFiles(run.journal).sealed(index), block, entries)


def command(what: str, arguments: Sequence[str]) -> Cost:
    """Run a command to its end."""
    begin = time.monotonic()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    code, used = _wait(process.pid)
    if code not in (0, 1):
        raise RuntimeError(f"{what} ended with {code}")
    return Cost(what=what, seconds=time.monotonic() - begin, peak_mb=used.ru_maxrss / 1024)


def resume(run: RunDirectory, what: str, bar: float | None) -> Cost:
    """Start a guard on the run as one that continues it, make three steps, and close it."""
    with tempfile.TemporaryFile("w+") as out:
        arguments = [sys.executable, "-c", RESUME, str(run.root), str(STEPS)]
        code, used = _wait(subprocess.Popen(arguments, stdout=out).pid)
        out.seek(0)
        found = re.search(r"seconds (\S+)", out.read())
    if code or found is None:
        raise RuntimeError(f"{what} ended with {code}")
    return Cost(what=what, seconds=float(found[1]), peak_mb=used.ru_maxrss / 1024, seconds_bar=bar)


def serve(run: RunDirectory) -> Cost:
    """Start the server and ask for the page of the run, which is the only one."""
    begin = time.monotonic()
    arguments = ["trimtab", "serve", str(run.root.parent), "--port", "0"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    address = _address(process)
    with urllib.request.urlopen(address, timeout=600) as reply:
        reply.read()
    seconds = time.monotonic() - begin
    process.send_signal(signal.SIGINT)
    _, used = _wait(process.pid)
    return Cost(what="serve: the page of the run", seconds=seconds, peak_mb=used.ru_maxrss / 1024)


def _address(process: "subprocess.Popen[bytes]") -> str:
    stream = process.stdout
    for line in iter(stream.readline, b"") if stream is not None else ():
        found = re.search(rb"http://[\w.:\[\]]+", line)
        if found:
            return found[0].decode()
    raise RuntimeError("the server printed no address")


def _wait(pid: int) -> tuple[int, resource.struct_rusage]:
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used


def measure(run: RunDirectory) -> list[Cost]:
    """Each command once."""
    path = str(run.root)
    judge = run.home / "judge.json"
    judge.unlink(missing_ok=True)
    return [
        command("diagnose --json", ["trimtab", "diagnose", path, "--json"]),
        command("report, with post-mortems and page", ["trimtab", "report", path]),
        command("follow, until the last record", ["trimtab", "follow", path]),
        serve(run),
        resume(run, "resume, nothing saved, and close", None),
        resume(run, "resume and close", MAX_RESUME_SECONDS),
    ]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDirectory((folder or Path(scratch)) / "long")
        if not run.exists():
            write_run(run)
        costs = measure(run)
    header = ["what", "seconds", "bar", "peak MB", "bar", "met"]
    body = (
        f"A journal of {STEPS:,} records with {SIGNALS} signals, 8 GB on disk; in memory it would "
        f"be as large. Peak: the largest resident memory of the process.\n\n"
        + table(header, [cost.row() for cost in costs])
    )
    publish("Scale: a long run", "scripts/bench scale", body)


if __name__ == "__main__":
    main()
