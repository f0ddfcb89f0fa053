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
    """A small classifier and its loop, with a guard in all modes but "bare"."""

    def __init__(self, mode: str, run_dir: Path) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
        self._model = nn.Sequential(*layers)
        # Fused in every mode: `protect` makes it so where it can, and would seem to save time.
        self.optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, fused=True)
        self._inputs, self._labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
        self.guard: Any = None
        if mode != "bare":
            self.guard = trimtab.watch(self._model, self.optimizer, run_dir=run_dir, mode=mode)

    def train(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self._model(self._inputs), self._labels)
            if self.guard is not None:
                self.guard.record(loss=loss)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def close(self) -> None:
        if self.guard is not None:
            self.guard.close()


class Timed:
    """A loop with clocks inside its guard, whose own calls are better not counted."""

    def __init__(self, mode: str, run_dir: Path) -> None:
        self.loop = Loop(mode, run_dir)
        guard = self.loop.guard
        self._clock = None if guard is None else Entrances(guard, self.loop.optimizer)
        self._observer = ObserverTime(run_dir)
        self._observed: list[float] = []
        self._steps: list[float] = []
        self._entrances: list[float] = []

    def take_turn(self) -> None:
        """Make the steps of a turn and keep their time."""
        began = time.process_time()
        self.loop.train()
        self._steps.append((time.process_time() - began) / STEPS)
        if self._clock is not None:
            self._entrances.append(self._clock.pop() / STEPS)
            if len(self._steps) in (WARM_UP, WARM_UP + ROUNDS):
                self._observed.append(self._observer.seconds())

    def seconds(self) -> tuple[float, float, float]:
        """Of a step: all threads, inside the entrances, of the observer; means of all turns."""
        step = statistics.mean(self._steps[WARM_UP:])
        if self._clock is None:
            return step, 0.0, 0.0
        before, after = self._observed
        inside = statistics.mean(self._entrances[WARM_UP:])
        return step, inside, (after - before) / ROUNDS / STEPS


def time_loops(folder: Path) -> dict[str, tuple[float, float, float]]:
    """Train without a guard and in each mode, in turns."""
    loops = {mode: Timed(mode, folder / mode) for mode in ("bare", *BARS)}
    for _ in range(WARM_UP + ROUNDS):
        for one in loops.values():
            one.take_turn()
    found = {mode: one.seconds() for mode, one in loops.items()}
    for one in loops.values():
        one.loop.close()
    return found


def count_loops(folder: Path) -> dict[str, tuple[float, float]]:
    """Count operations and calls of Python, once the guard has settled; means of a step."""
    found = {}
    for mode in ("bare", *BARS):
        loop = Loop(mode, folder / mode)
        loop.train(WARM_UP * STEPS)
        with Counting() as counting:
            loop.train(COUNTED_STEPS)
        calls = _count_calls(loop)
        found[mode] = counting.counts.total() / COUNTED_STEPS, calls / COUNTED_STEPS
        loop.close()
    return found


def _count_calls(loop: Loop) -> int:
    calls = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    loop.train(COUNTED_STEPS)
    sys.setprofile(None)
    return calls


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
    (bare, _, _), rows, headlines = times["bare"], [], []
    bare_operations, bare_calls = counts["bare"]
    for mode, bar in BARS.items():
        seconds, inside, observer = times[mode]
        num_operations, num_calls = counts[mode]
        cost = Cost(
            entrances=1e6 * inside,
            ratio=seconds / bare,
            operations=num_operations - bare_operations,
            calls=num_calls - bare_calls,
        )
        us, ratio, operations, calls = cost.cells()
        beside = f"{1e6 * observer:.0f} us"
        above = f"{1e6 * (seconds - bare):.0f} us"
        bars = " / ".join(bar.cells())
        step = f"{1e3 * seconds:.2f} ms"
        is_met = "yes" if cost.is_within(bar) else "NO"
        rows.append([mode, step, us, above, beside, ratio, operations, calls, bars, is_met])
        what = f"a step of {1e3 * bare:.1f} ms, {mode}"
        headlines.append((f"{what}: inside the guard", us, bar.cells()[0]))
        headlines.append((what, ratio, bar.cells()[1]))
    body = (
        f"A classifier with 26,000 parameters, 6 tensors, fused AdamW, one thread; a bare step "
        f"takes {1e3 * bare:.2f} ms. Means of {ROUNDS} turns of {STEPS} steps, interleaved, "
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
