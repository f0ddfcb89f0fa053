"""Each command once on a long run."""

import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable

from benchmarks.scale.processes import Cost, read_address, run, run_and_read, start, wait
from trimtab.journal import RunDirectory

MAX_RESUME_SECONDS = 10
SHIP_SECONDS = 60.0
"""How long a tracker is fed: all records would take an hour, and the memory is that of the start,
when the whole journal waits."""

RESUME = """
import sys, time, torch, trimtab
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
begin = time.monotonic()
facts = {"step": int(sys.argv[2])}
guard = trimtab.watch(model, optimizer, run_dir=sys.argv[1], facts=facts)
print("seconds", time.monotonic() - begin)
with guard:
    for _ in range(3):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        guard.record(loss=loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def commands(directory: RunDirectory, steps: int) -> dict[str, Callable[[], Cost]]:
    """Each command by its name, in the order in which they are measured."""
    path = str(directory.root)
    judge = directory.home / "judge.json"

    def first_resume() -> Cost:
        judge.unlink(missing_ok=True)
        return resume(directory, "resume, nothing saved, and close", steps, None)

    def command(what: str, *arguments: str) -> Callable[[], Cost]:
        return lambda: run(what, ["trimtab", *arguments])

    tries: dict[str, Callable[[], Cost]] = {
        what: command(what, *arguments)
        for what, arguments in {
            "diagnose --json": ("diagnose", path, "--json"),
            "diagnose --write, with post-mortems and page": ("diagnose", path, "--write"),
            "observe, until the last record": ("observe", path),
            "compare with itself": ("compare", path, path),
            "checkpoints": ("checkpoints", path),
            "note": ("note", path, "measured"),
        }.items()
    }
    tries["observe --web: the page of the run"] = lambda: serve(directory)
    tries[f"observe --to tensorboard, first {SHIP_SECONDS:.0f} s"] = lambda: ship(
        directory, SHIP_SECONDS
    )
    tries["resume, nothing saved, and close"] = first_resume
    tries["resume and close"] = lambda: resume(
        directory, "resume and close", steps, MAX_RESUME_SECONDS
    )
    return tries


def resume(directory: RunDirectory, what: str, steps: int, bar: float | None) -> Cost:
    """Start a guard on the run as one that continues it, make three steps, and close it."""
    arguments = [sys.executable, "-c", RESUME, str(directory.root), str(steps)]
    text, peak = run_and_read(arguments)
    found = re.search(r"seconds (\S+)", text)
    if found is None:
        raise RuntimeError(f"{what} printed no time")
    return Cost(what=what, seconds=float(found[1]), peak_mb=peak, seconds_bar=bar)


def serve(directory: RunDirectory) -> Cost:
    """Start the server and ask for the page of the run, which is the only one."""
    begin = time.monotonic()
    arguments = ["trimtab", "observe", str(directory.root), "--web", "--address", "127.0.0.1:0"]
    process = start(arguments, stdout=subprocess.PIPE)
    with urllib.request.urlopen(read_address(process), timeout=600) as reply:
        reply.read()
    seconds = time.monotonic() - begin
    process.send_signal(signal.SIGINT)
    _, used = wait(process)
    return Cost(
        what="observe --web: the page of the run", seconds=seconds, peak_mb=used.ru_maxrss / 1024
    )


def ship(directory: RunDirectory, seconds: float) -> Cost:
    """Send the run to TensorBoard from its first record on, until the time is over."""
    (directory.home / "ship" / "tensorboard.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        return run(
            f"observe --to tensorboard, first {seconds:.0f} s",
            ["trimtab", "observe", str(directory.root), "--to", "tensorboard"],
            stop_after=seconds,
            environment={"TRIMTAB_TENSORBOARD_DIR": folder},
        )
