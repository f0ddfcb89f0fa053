"""What each mode costs on this device: a step with a guard against the same step without.

All loops train the same model in turns, so that other work on the machine slows all of them alike.
A turn is as long as the interval of telemetry and snapshots, so that each turn has one of them.
"""

import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trimtab.selftest.loop import Training, batches

MODES = ("observe", "protect", "recover")
TURN_STEPS, TURNS = 10, 4
"""The first turn creates state, and does not count."""


class Size(NamedTuple):
    """A model and its batches."""

    width: int
    depth: int
    rows: int


SIZES = {"cuda": Size(768, 6, 4096), "cpu": Size(256, 4, 128)}
"""A step of about 20 ms. Chosen: a guard costs the same time in a step of any length, so that of a
tiny step would say more about Python than about a training run."""


class Cost(NamedTuple):
    """The milliseconds of a step without a guard, and how many times as long it is with one."""

    bare_ms: float
    ratios: dict[str, float]

    def line(self) -> str:
        modes = ", ".join(f"{mode} x{ratio:.2f}" for mode, ratio in self.ratios.items())
        return f"cost  a step of {self.bare_ms:.1f} ms: {modes}"


def measure_cost(device: torch.device, folder: Path) -> Cost:
    """Train without a guard and in each mode, and compare the times."""
    size = SIZES.get(device.type, SIZES["cpu"])
    data = [batch.to(device) for batch in batches(TURN_STEPS, size.rows, size.width)]
    # CPU time is that of this process alone; a GPU's time only passes on the wall.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in ("bare", *MODES)}
    runs = {name: Training(device=device, width=size.width, depth=size.depth) for name in seconds}
    with ExitStack() as stack:
        # Threads that wait for each other on a busy machine would be counted as work.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        guards: dict[str, Any] = {
            mode: stack.enter_context(runs[mode].watch(folder / mode, mode)) for mode in MODES
        }
        for _ in range(TURNS):
            for name, run in runs.items():
                begin = clock()
                for batch in data:
                    run.step(batch, guards.get(name))
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds[name].append(clock() - begin)
    medians = {name: statistics.median(turns[1:]) for name, turns in seconds.items()}
    ratios = {mode: round(medians[mode] / medians["bare"], 3) for mode in MODES}
    return Cost(round(1e3 * medians["bare"] / TURN_STEPS, 3), ratios)
