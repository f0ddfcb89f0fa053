"""What `recover` costs a healthy run: `scripts/bench recover.cost [SIZE ...]`; 10M and 50M (x1).

Steps with and without it are trained in turn in one process, so drift of the machine favours
neither. The canary is timed apart, with batches of full length, and counted by how often it comes.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.contenders import Contender, Make
from benchmarks.overhead import SHORT_TOKENS, STEP_TOKENS, Race, percent
from benchmarks.results import publish, table
from benchmarks.snapshots import EVERY, WARM_STEPS, Recover
from trimtab.decide.readings import CANARY_SHARE, CANARY_STEPS, YOUNG_BOUNDARIES, canary_every
from trimtab.lab.model.sizes import SIZES
from trimtab.live.recover.paired_probe import PairedProbe

ROUNDS = 12
"""Snapshots that are counted; there are 10 steps for each."""

READINGS = 5
BAR = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Shares of a full step, as means."""

    size: str
    step_seconds: float
    again: float
    """A second bare loop against the first: the noise."""
    steps: float
    """Snapshots, telemetry, gate and deciding, without the canary."""
    reading: float
    """One reading of the canary."""

    def canary(self, boundary: int) -> float:
        """The canary, as a share of the time at this age of the run."""
        every = canary_every(CANARY_SHARE, boundary)
        return 0.0 if every is None else self.reading / every

    def row(self) -> list[str]:
        """A row of the table."""
        early, later = self.canary(1), self.canary(YOUNG_BOUNDARIES + 1)
        return [
            self.size,
            f"{1e3 * self.step_seconds:.0f} ms",
            percent(self.again),
            percent(self.steps),
            percent(later),
            percent(self.steps + later),
            percent(early),
            percent(self.steps + early),
            "yes" if self.steps + later <= BAR else "NO",
        ]


def measure(size: str, folder: Path) -> Cost:
    """Train bare, bare again and in `recover`, in turn."""
    makes: dict[str, Make] = {"bare": Contender, "bare again": Contender, "recover": Recover}
    race = Race(makes, size, folder, WARM_STEPS)
    for one in race.contenders.values():  # from here on every slot has been filled once
        one.wholes.clear()
    race.take_turns(EVERY * ROUNDS)
    cost = Cost(
        size=size,
        step_seconds=race.step_seconds,
        again=race.extra("bare again", "wholes", mean=True),
        steps=race.extra("recover", "wholes", mean=True),
        reading=_reading_seconds(race.base, size) / race.step_seconds,
    )
    race.close()
    return cost


def _reading_seconds(loop: Contender, size: str) -> float:
    """CPU time of one reading of the canary with batches of full length."""
    batches = {
        step: [torch.randint(0, SIZES[size].vocab_size, STEP_TOKENS)]
        for step in range(CANARY_STEPS)
    }
    probe = PairedProbe(
        loop.model,
        lambda batch: loop.model(batch, batch).loss,
        lambda values: values,
        torch.device("cpu"),
    )
    seconds = []
    for _ in range(READINGS):
        started = time.process_time()
        probe.read(batches, dict.fromkeys(batches, 0.0))
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        costs = [measure(size, Path(folder) / size) for size in sys.argv[1:] or ("10M", "x1")]
    header = (
        *("size", "bare step", "bare again", "steps", "canary", "together"),
        *("canary, first 1,000 steps", "together", f"within {100 * BAR:g} %"),
    )
    body = (
        "Extra CPU time of `recover` over the bare loop (clip, fused AdamW), as a mean, relative "
        f"to a bare step of {STEP_TOKENS[0]} x {STEP_TOKENS[1]} tokens; one thread. Steps: "
        f"{EVERY * ROUNDS} whole steps of {SHORT_TOKENS[0]} x {SHORT_TOKENS[1]} tokens in turn, "
        f"after {WARM_STEPS} that are not counted, with a snapshot every {EVERY} and telemetry at "
        f"every second step. Canary: {CANARY_STEPS} forward passes of full length, counted by how "
        "often they come.\n\n"
    )
    rows = [cost.row() for cost in costs]
    publish("Cost of recovering", "scripts/bench recover.cost", body + table(header, rows))


if __name__ == "__main__":
    main()
