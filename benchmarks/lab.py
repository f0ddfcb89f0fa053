"""How fast each size of the lab trains on one core."""

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.results import publish, table
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

STEPS = {"0.15M": 60, "1M": 30, "3M": 20, "10M": 12, "x1": 6}
"""Enough for a median, and few enough to finish in minutes."""

UNCOUNTED = 2
"""The first steps allocate memory and create the optimizer's state."""


def step_seconds(size: str, dtype: Dtype) -> float:
    """The median CPU time of a watched step of the trainer."""
    config = TrainConfig(model=SIZES[size], steps=STEPS[size], dtype=dtype, eval_batches=1)
    clock: list[float] = []

    def on_step(done: int, loss: Tensor) -> None:
        clock.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder), on_step=on_step)
    # Without the last step, which writes a checkpoint.
    steps = [end - begin for begin, end in itertools.pairwise(clock[UNCOUNTED - 1 : -1])]
    return statistics.median(steps)


def speed_rows(sizes: list[str]) -> list[list[object]]:
    """One row per size."""
    rows: list[list[object]] = []
    for size in sizes:
        row: list[object] = [size, f"{SIZES[size].parameters:,}", STEPS[size]]
        for dtype in Dtype:
            seconds = step_seconds(size, dtype)
            row += [f"{1 / seconds:.2f}", f"{1024 / seconds:,.0f}"]
        rows.append(row)
    return rows


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    sizes = sys.argv[1:] or list(SIZES)
    header = ["size", "parameters", "steps"]
    for dtype in Dtype:
        header += [f"{dtype}: steps/s", "tokens/s"]
    speed = table(header, speed_rows(sizes))
    body = (
        "Steps of 8 x 128 tokens of the reference trainer, watched by trimtab, on one core; median "
        "of CPU time, because other work on the machine disturbs the wall clock. No bar: these are "
        "for planning.\n\n"
        f"{speed}"
    )
    publish("Lab", "scripts/bench lab", body)


if __name__ == "__main__":
    main()
