"""Measures everything that is published, at one commit: `scripts/bench release [TEXT...]`.

All of it takes many hours. With `--minutes N` the longest measurements get smaller arguments, then
are left out, until the rest should be over by then, and none is begun later; it says which. With
TEXT only measurements with such a text in their command. What was measured is kept by the last
commit that changed `src`, so that the command continues where it was stopped, and repeats what
failed; to measure once more, delete the folder of the measurement. Once nothing is left, sections
of other commits leave RESULTS.md: a release has figures of one commit.

Needs the dependency groups `dev`, `bench`, `peers` and `trackers`, MLflow, Chromium and PostgreSQL,
and the runs of `scripts/bench judge generate`, which takes hours. A measurement that needs
something else than this machine has fails, and is listed at the end.
rlwatch and rldoctor are judged beside trimtab where they are installed.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.results import ROOT, commit, commit_of, read_sections, rewrite


@dataclass(frozen=True, slots=True)
class Measurement:
    """One call of `scripts/bench`; FOLDER in it is a folder that is kept between attempts."""

    command: str
    minutes: float = 5
    """Roughly, on two cores."""
    shorter: tuple[str, float] | None = None
    """The same with smaller arguments, and its minutes."""
    alone: bool = False
    """Times are measured, so nothing else may run."""


MEASUREMENTS = (
    Measurement("overhead", alone=True),
    Measurement("small_steps", alone=True),
    Measurement("check_objects time", alone=True),
    Measurement("detect cost", alone=True),
    Measurement("pages", alone=True),
    # The longest first; then the cheap ones, so that a run that is stopped has most of the figures.
    Measurement("matrix FOLDER", 240, ("matrix FOLDER --only core", 10)),
    Measurement("scale FOLDER", 120, ("scale FOLDER --only fleet", 5)),
    Measurement("loops soak 100000", 120, ("loops soak 10000", 12)),
    Measurement("attack all", 120, ("attack hostile", 10)),
    Measurement("detect", 10),
    Measurement("quiet_parts"),
    Measurement("causes stories"),
    Measurement("agents report", 10),
    Measurement("agents live", 10),
    Measurement("judge report", 20),
    Measurement("rl report", 40),
    Measurement("recover flips --flips 300 --folder FOLDER", 30, ("recover flips --flips 40", 5)),
    Measurement("recover faults --seeds 5 --folder FOLDER", 40, ("recover faults --seeds 2", 15)),
    Measurement("recover schedules --schedules 500 --seconds 600 --folder FOLDER", 10),
    Measurement("gate"),
    Measurement("resume_audit"),
    Measurement("check_objects", 10),
    Measurement("corpus speed"),
    Measurement("journal"),
    Measurement("readers"),
    Measurement("ship faults"),
    Measurement("trial --seeds 1 --folder FOLDER", 90, ("trial --seeds 1 --minutes 20", 20)),
    Measurement("strangers --judged --publish"),
    Measurement("documents --publish"),
    Measurement("loops setups", 30),
    Measurement("wide", 20, ("wide 1024 16384", 5)),
    Measurement("real_size 150", 60, ("real_size 60", 25)),
    Measurement("fuzz_readers 1000000 --seconds 3600", 60, ("fuzz_readers --seconds 600", 10)),
)


def fit(measurements: Sequence[Measurement], minutes: float) -> list[Measurement]:
    """Shorten, then leave out the longest, until all should be over in so many minutes."""
    plan, workers = list(measurements), os.cpu_count() or 1
    while plan and minutes < max(
        max(one.minutes for one in plan),
        sum(one.minutes / (1 if one.alone else workers) for one in plan),
    ):
        longest = max(plan, key=lambda one: (one.shorter is not None, one.minutes))
        at = plan.index(longest)
        command, less = longest.shorter or ("left out", 0)
        print(f"{longest.command}: {command}")
        short = replace(longest, command=command, minutes=less, shorter=None)
        plan[at : at + 1] = [short] if longest.shorter else []
    return plan


class Release:
    """The measurements of one commit, each with its output in a folder of its own."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self._folder, self._end = folder, time.monotonic() + 60 * minutes

    def run(self, measurements: Sequence[Measurement]) -> list[Measurement]:
        """Run what is not done yet; return what failed."""
        todo = [one for one in measurements if not self.is_done(one)]
        others = [one for one in todo if not one.alone]
        failed = [one for one in todo if one.alone and not self._measure(one)]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            outcomes = list(pool.map(self._measure, others))
        return failed + [
            one for one, is_right in zip(others, outcomes, strict=True) if not is_right
        ]

    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def is_done(self, one: Measurement) -> bool:
        return (self._folder_of(one) / "done").exists()

    def _measure(self, one: Measurement) -> bool:
        if self.is_over():
            print(f"{one.command}: not begun, the time is over", flush=True)
            return False
        folder = self._folder_of(one)
        (folder / "kept").mkdir(parents=True, exist_ok=True)
        command = one.command.replace("FOLDER", str(folder / "kept"))
        started = time.monotonic()
        with (folder / "output.txt").open("w", encoding="utf-8") as output:
            process = subprocess.run(
                [str(ROOT / "scripts" / "bench"), *command.split()],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        minutes = (time.monotonic() - started) / 60
        state = "done" if process.returncode == 0 else f"FAILED, see {output.name}"
        print(f"{one.command}: {state}, {minutes:.1f} min", flush=True)
        if process.returncode == 0:
            (folder / "done").touch()
        return process.returncode == 0

    def _folder_of(self, one: Measurement) -> Path:
        return self._folder / one.command.replace(" ", "_")


def keep_only(measured: str, sections: dict[str, str]) -> dict[str, str]:
    """Return the sections that were measured at this commit."""
    return {title: text for title, text in sections.items() if commit_of(text) == measured}


def main() -> None:
    """Measure, and drop what is of another commit once all is measured."""
    measured = commit()
    if measured.endswith("changes"):
        sys.exit("src has changes that are not committed; commit them first")
    parser = argparse.ArgumentParser(prog="scripts/bench release")
    parser.add_argument("wanted", nargs="*", default=[""], metavar="TEXT")
    parser.add_argument("--minutes", type=float, default=math.inf)
    given = parser.parse_args()
    release = Release(Path.home() / ".cache/trimtab/release" / measured, given.minutes)
    wanted = [one for one in MEASUREMENTS if any(text in one.command for text in given.wanted)]
    todo = [one for one in wanted if not release.is_done(one)]
    plan = fit(todo, given.minutes)
    failed = release.run(plan)
    if len(wanted) == len(MEASUREMENTS) and len(plan) == len(todo) and not release.is_over():
        change: Callable[[dict[str, str]], dict[str, str]] = partial(keep_only, measured)
        for title in sorted(set(read_sections()) - set(change(read_sections()))):
            print(f"dropped, of another commit: {title}")
        rewrite(change)
    if failed:
        sys.exit("failed: " + "; ".join(one.command for one in failed))


if __name__ == "__main__":
    main()
