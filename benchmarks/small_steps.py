"""The cost of a guard where a step takes a millisecond: `scripts/bench small_steps [--dry]`.

A classifier of three layers is trained bare and in each mode, in turns of 20 steps. The costs of a
guard that do not depend on the model, Python and the launch of small kernels, are all there is.
Another version: PYTHONPATH=OTHER_CHECKOUT/src scripts/bench small_steps --dry.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import trimtab
from benchmarks.entrances import Entrances, ObserverTime
from benchmarks.results import publish, table
from trimtab.selftest.promises import Counting

STEPS, ROUNDS, WARM_UP = 20, 150, 20
COUNTED_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a step takes, mean of many."""

    entrances: float
    """Microseconds of the training thread inside the guard's entrances."""
    ratio: float
    """Processor time of the training process, of that of the bare loop."""
    operations: float
    """Above those of the bare loop."""
    calls: float
    """Of Python functions, above those of the bare loop."""

    def is_within(self, bar: "Cost") -> bool:
        return all(getattr(self, one.name) <= getattr(bar, one.name) for one in fields(self))

    def cells(self) -> list[str]:
        return [
            f"{self.entrances:.0f} us",
            f"x{self.ratio:.2f}",
            f"{self.operations:.1f}",
            f"{self.calls:.0f}",
        ]


BARS = {
    "observe": Cost(entrances=300, ratio=1.3, operations=10, calls=200),
    "protect": Cost(entrances=350, ratio=1.35, operations=12, calls=220),
    "recover": Cost(entrances=600, ratio=1.6, operations=26, calls=350),
}


class Loop:
    """A small classifier and its loop, without a guard."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
        self._model = nn.Sequential(*layers)
        # Fused in every mode: `protect` makes it so where it can, and would seem to save time.
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, fused=True)
        self._inputs, self._labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
        self.seconds: list[float] = []
        """The processor time of a step, all threads, mean of each turn."""

    def train(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self._model(self._inputs), self._labels)
            self.record(loss)
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()

    def take_turn(self) -> None:
        """Make the steps of a turn and keep their time."""
        began = time.process_time()
        self.train()
        self.seconds.append((time.process_time() - began) / STEPS)

    def record(self, loss: torch.Tensor) -> None:
        """Tell the guard of the loss."""

    def count_operations(self) -> float:
        counting = Counting()
        with counting:
            self.train(COUNTED_STEPS)
        return counting.counts.total() / COUNTED_STEPS

    def count_calls(self) -> float:
        calls = 0

        def note(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(note)
        self.train(COUNTED_STEPS)
        sys.setprofile(None)
        return calls / COUNTED_STEPS


class WatchedLoop(Loop):
    """The same loop with a guard."""

    def __init__(self, mode: str, run_dir: Path) -> None:
        super().__init__()
        self._guard = trimtab.watch(self._model, self._optimizer, run_dir=run_dir, mode=mode)

    def record(self, loss: torch.Tensor) -> None:
        self._guard.record(loss=loss)

    def close(self) -> None:
        self._guard.close()


class TimedLoop(WatchedLoop):
    """The same loop with clocks inside the guard, whose own calls are better not counted."""

    def __init__(self, mode: str, run_dir: Path) -> None:
        super().__init__(mode, run_dir)
        self._clock = Entrances(self._guard, self._optimizer)
        self._observer = ObserverTime(run_dir)
        self._observed: list[float] = []
        self.entrances: list[float] = []
        """Thread time of a step inside the entrances, mean of each turn."""

    def take_turn(self) -> None:
        super().take_turn()
        self.entrances.append(self._clock.pop() / STEPS)
        if len(self.entrances) in (WARM_UP, WARM_UP + ROUNDS):
            self._observed.append(self._observer.seconds())

    @property
    def observer_seconds(self) -> float:
        """The processor time of the observer per step."""
        before, after = self._observed
        return (after - before) / ROUNDS / STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of a step, mean of all turns but the first."""

    step: float
    entrances: float
    observer: float


def time_loops(folder: Path) -> dict[str, Timing]:
    """Train without a guard and in each mode, in turns."""
    bare = Loop()
    watched = {mode: TimedLoop(mode, folder / mode) for mode in BARS}
    for _ in range(WARM_UP + ROUNDS):
        for loop in (bare, *watched.values()):
            loop.take_turn()
    found = {"bare": Timing(step=_mean(bare.seconds), entrances=0.0, observer=0.0)}
    for mode, one in watched.items():
        found[mode] = Timing(
            step=_mean(one.seconds),
            entrances=_mean(one.entrances),
            observer=one.observer_seconds,
        )
        one.close()
    return found


def _mean(turns: list[float]) -> float:
    return statistics.mean(turns[WARM_UP:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a step calls, mean of 1,000."""

    operations: float
    calls: float


def count_loops(folder: Path) -> dict[str, Counts]:
    """Count without a guard and in each mode, once the guard has settled."""
    found = {}
    for mode in ("bare", *BARS):
        loop = Loop() if mode == "bare" else WatchedLoop(mode, folder / mode)
        loop.train(WARM_UP * STEPS)
        found[mode] = Counts(operations=loop.count_operations(), calls=loop.count_calls())
        if isinstance(loop, WatchedLoop):
            loop.close()
    return found


HEADER = (
    *("mode", "step", "inside the entrances", "loop minus bare", "observer beside it", "ratio"),
    *("operations above bare", "Python calls above bare", "bars", "met"),
)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench small_steps")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        times = time_loops(Path(name) / "timed")
        counts = count_loops(Path(name) / "counted")
    bare, rows, headlines = times["bare"], [], []
    for mode, bar in BARS.items():
        one = times[mode]
        cost = Cost(
            entrances=1e6 * one.entrances,
            ratio=one.step / bare.step,
            operations=counts[mode].operations - counts["bare"].operations,
            calls=counts[mode].calls - counts["bare"].calls,
        )
        us, ratio, operations, calls = cost.cells()
        beside = f"{1e6 * one.observer:.0f} us"
        above = f"{1e6 * (one.step - bare.step):.0f} us"
        bars = " / ".join(bar.cells())
        step = f"{1e3 * one.step:.2f} ms"
        is_met = "yes" if cost.is_within(bar) else "NO"
        rows.append([mode, step, us, above, beside, ratio, operations, calls, bars, is_met])
        what = f"a step of {1e3 * bare.step:.1f} ms, {mode}"
        headlines.append((f"{what}: inside the guard", us, bar.cells()[0]))
        headlines.append((what, ratio, bar.cells()[1]))
    body = (
        f"A classifier with 26,000 parameters, 6 tensors, fused AdamW, one thread; a bare step "
        f"takes {1e3 * bare.step:.2f} ms. Means of {ROUNDS} turns of {STEPS} steps, interleaved, "
        "with telemetry and snapshots in them. Inside the entrances: thread time inside "
        "`guard.record` and the hooks of the optimizer. Step, ratio and loop minus bare: processor "
        "time of the training process, all threads. Observer: processor time of the process "
        f"beside it, per step. Operations and calls: means of {COUNTED_STEPS:,} steps in runs of "
        "their own.\n\n"
    ) + table(HEADER, rows)
    command = "scripts/bench small_steps"
    publish("Cost of small steps", command, body, headlines, is_dry=given.dry)


if __name__ == "__main__":
    main()
