"""How fast TensorBoard event files are read: `scripts/bench readers_tensorboard`, a minute.

Ours against TensorBoard's own `EventAccumulator`, told to keep every value, in CPU time of the same
process, in turns. Both check the checksums. Needs the package tensorboard.
"""

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.results import publish, table
from trimtab.core.block import Block
from trimtab.readers import read_log

TITLE = "Reading TensorBoard event files"
COMMAND = "scripts/bench readers_tensorboard"
STEPS, TAGS = 5_000, 20
TURNS = 5
BAR = 5.0
"""Times faster than the stock reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """CPU seconds for one file, and whether both readers found the same."""

    style: str
    ours: list[float]
    stock: list[float]
    is_equal: bool

    @property
    def times_faster(self) -> float:
        """The ratio of the medians."""
        return statistics.median(self.stock) / statistics.median(self.ours)


def measure(style: str, *, new_style: bool) -> Speed:
    """Write a file of one style by torch's SummaryWriter, and read it in turns."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, new_style=new_style)
        block, tags = read_log(folder).block, _read_stock(folder)  # both warm
        ours: list[float] = []
        stock: list[float] = []
        for _ in range(TURNS):
            ours.append(_seconds(lambda: read_log(folder)))
            stock.append(_seconds(lambda: _read_stock(folder)))
    return Speed(style=style, ours=ours, stock=stock, is_equal=_is_equal(block, tags))


def main() -> None:
    """Measure both styles of scalars and publish."""
    speeds = [
        measure("simple_value (torch)", new_style=False),
        measure("tensor (TensorFlow 2, JAX)", new_style=True),
    ]
    rows = [
        (
            speed.style,
            f"{STEPS * TAGS / statistics.median(speed.ours) / 1000:,.0f}",
            f"{STEPS * TAGS / statistics.median(speed.stock) / 1000:,.0f}",
            f"**{speed.times_faster:.1f}**",
            f">= {BAR:g}",
            "equal" if speed.is_equal else "DIFFERENT",
        )
        for speed in speeds
    ]
    header = ("scalars as", "ours, k/s", "stock, k/s", "times faster", "bar", "values")
    body = (
        f"{STEPS * TAGS:,} scalars under {TAGS} tags in one file, medians of {TURNS} readings each "
        "in turns, CPU time. The stock reader is `EventAccumulator` with nothing sampled away.\n\n"
    )
    publish(TITLE, COMMAND, body + table(header, rows))


def _write(folder: str, *, new_style: bool) -> None:
    from torch.utils.tensorboard import SummaryWriter

    values = np.random.default_rng(0).normal(size=(STEPS, TAGS))
    names = ["train/loss", *(f"train/metric_{number}" for number in range(1, TAGS))]
    with SummaryWriter(folder) as writer:
        for step, row in enumerate(values.tolist()):
            for name, value in zip(names, row, strict=True):
                writer.add_scalar(name, value, step, new_style=new_style)


def _read_stock(folder: str) -> dict[str, list[float]]:
    """Every scalar by its tag, as TensorBoard reads it."""
    events: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    found = {tag: [e.value for e in accumulator.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        found[tag] = [e.tensor_proto.float_val[0] for e in accumulator.Tensors(tag)]
    return found


def _is_equal(block: Block, tags: dict[str, list[float]]) -> bool:
    names = {"train/loss": "loss"}
    return len(tags) == TAGS and all(
        block.column(names.get(tag, tag)).values.tolist() == values for tag, values in tags.items()
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
