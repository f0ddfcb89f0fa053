"""Small runs of the trainer, and comparisons of two runs."""

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.lab.conftest import SMALL_BYTES
from torch import Tensor

from trimtab.core.block import Block
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import TrainConfig

CLOCKS = frozenset({"clock", "step_seconds", "tokens_per_second", "data_seconds"})
"""Signals that measure time, so they are never the same twice."""

TRAINED = ("loss", "grad_norm", "lr", "tokens")
"""Signals that are recorded at every step and depend on the run alone."""


class Interrupted(Exception):
    """Stops a run."""


def small(**settings: Any) -> TrainConfig:
    """A run of 12 steps that takes a second."""
    usual: dict[str, Any] = {
        "model": SIZES["0.15M"],
        "steps": 12,
        "batch_size": 8,
        "length": 16,
        "corpus_bytes": SMALL_BYTES,
        "eval_steps": 5,
        "eval_batches": 2,
        "checkpoint_steps": 4,
    }
    return TrainConfig(**(usual | settings))


def run_until(stop: int, config: TrainConfig, run_dir: Path, cache: Path, **options: Any) -> None:
    """Train and stop after a number of steps, like a run that is killed there."""

    def on_step(done: int, loss: Tensor) -> None:
        if done == stop < config.steps:
            raise Interrupted

    with contextlib.suppress(Interrupted):
        train(config, run_dir, cache_dir=cache, on_step=on_step, **options)


def journal(run_dir: Path) -> Block:
    return read_journal(RunDirectory(run_dir)).block


def timeless(block: Block) -> dict[str, tuple[bytes, bytes]]:
    """Every signal but the clocks, as bytes: equal means bit-identical, NaN and gaps included."""
    content = {
        name: (np.where(column.present, column.values, 0.0).tobytes(), column.present.tobytes())
        for name, column in block.columns.items()
        if name not in CLOCKS
    }
    for name in ("step", "tick", "attempt", "data_position"):
        content[name] = (getattr(block, name).tobytes(), b"")
    return content


def first_difference(one: Block, other: Block, besides: Collection[str] = ()) -> int | None:
    """The first step at which two runs differ in any bit, except for clocks; None if none."""
    names = (one.columns.keys() | other.columns.keys()) - CLOCKS - set(besides)
    steps = min(len(one), len(other))
    same = one.step[:steps] == other.step[:steps]
    for mine, its in ((one.column(name)[:steps], other.column(name)[:steps]) for name in names):
        bits = (column.values.view(np.int64) for column in (mine, its))
        same &= (mine.present == its.present) & (~mine.present | np.equal(*bits))
    return None if same.all() else int(one.step[:steps][~same][0])


def per_step(block: Block, signal: str) -> dict[int, float]:
    """A signal by step; if a step was done twice, the last value counts."""
    column = block.column(signal)
    rows = zip(block.step.tolist(), column.values.tolist(), column.present, strict=True)
    return {step: value for step, value, present in rows if present}


def checkpoint(run_dir: Path, step: int) -> dict[str, Any]:
    path = run_dir / "checkpoints" / f"step-{step:08d}.pt"
    return dict(torch.load(path, weights_only=True))
