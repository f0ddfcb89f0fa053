"""Twenty runs are ended in each of eight ways, and their observers are killed: what is there?"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kit.ended_run import SPIKE

from benchmarks.results import publish, table
from trimtab.journal import RunDirectory
from trimtab.journal.news import read_news
from trimtab.journal.observer_command import judge_to_end

HOWS = ("close", "raise", "kill", "segv", "_exit", "oom", "hang", "group", "machine")
"""Ways to end; "group" kills the observer too, "machine" copies the files elsewhere besides."""

WAIT_SECONDS = 60.0
OUTPUTS = ("observer.jsonl", "verdict.json", "judge.json", "verdicts.json")


def main() -> None:
    """End runs and kill observers, and publish what was there."""
    parser = argparse.ArgumentParser(prog="scripts/bench observer ends")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    rows = []
    for how in HOWS:
        found = [_end(how) for _ in range(given.count)]
        how_it_ended = sorted({said for _, said in found})
        rows.append(
            [how, f"{sum(is_there for is_there, _ in found)} of {given.count}", *how_it_ended[:1]]
        )
        print(rows[-1], flush=True)
    restarts = _restart(given.count)
    body = (
        "A run with a loss spike ends; counted is whether the incident's post-mortem and how the "
        "run ended are there, at once, or (group, machine) after one `trimtab observe RUN "
        "--once`.\n\n"
        + table(["end", "there", "said"], rows)
        + f"\n\nAn observer that is killed at a random moment and started again until it ends: "
        f"{restarts} of {given.count} times the same bytes as of one that was never killed."
    )
    print(body)
    if not given.dry:
        publish("Observer: any end of a run", "scripts/bench observer ends", body)


def _end(how: str) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        place = Path(name) / "run"
        kind = "group" if how == "machine" else how
        command = [sys.executable, "-m", "tests.kit.ended_run", str(place), kind]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        if kind == "group":
            process.wait()
            if how == "machine":
                place = Path(shutil.move(place, Path(name) / "elsewhere"))
            judge_to_end(RunDirectory(place))
        said = _wait(place)
        process.kill()
        process.wait()
        texts = [path.read_text() for path in place.rglob("postmortem.md")]
        return any(str(SPIKE) in text for text in texts) and bool(said), said


def _wait(place: Path) -> str:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        news = [event for event in read_news(RunDirectory(place)) if event.kind == "run status"]
        over = [event for event in news if event.facts["status"] != "running"]
        if over and (place / "trimtab" / "verdict.json").exists():
            return f"{over[-1].facts['status']}: {over[-1].facts['how']}"
        time.sleep(0.05)
    return ""


def _restart(count: int) -> int:
    """Return how often killed observers end with the bytes of one that was not killed."""
    equal = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "run"
        subprocess.run(
            [sys.executable, "-m", "tests.kit.ended_run", str(place), "close"],
            stderr=subprocess.DEVNULL,
            check=True,
        )
        _forget(place)
        judge_to_end(RunDirectory(place))
        expected = _files(place)
        for seed in range(count):
            _forget(place)
            draw = random.Random(seed)
            for _ in range(3):
                observer = subprocess.Popen(
                    [sys.executable, "-P", "-m", "trimtab.observe", str(place), "--once"]
                )
                time.sleep(draw.uniform(0.3, 0.9))
                os.kill(observer.pid, signal.SIGKILL)
                observer.wait()
            judge_to_end(RunDirectory(place))
            equal += _files(place) == expected
    return equal


def _forget(place: Path) -> None:
    shutil.rmtree(place / "trimtab" / "incidents", ignore_errors=True)
    for name in OUTPUTS:
        (place / "trimtab" / name).unlink(missing_ok=True)


def _files(place: Path) -> dict[str, bytes]:
    home = place / "trimtab"
    chosen = [home / "observer.jsonl", home / "verdict.json", *home.rglob("incidents/*/*")]
    return {str(path.relative_to(home)): path.read_bytes() for path in chosen if path.exists()}


if __name__ == "__main__":
    main()
