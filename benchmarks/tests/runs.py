"""Labelled runs made for tests of the scoreboard."""

import numpy as np
from tests.kit.public_runs import Label, RealRun
from tests.kit.synthetic import block_of, falling_loss

from trimtab.core.block import Block


def event(start: int, end: int, *, kind: str = "spike", confidence: str = "high") -> Label:
    """An event whose peak lies in its middle."""
    return Label(
        kind=kind,
        start=start,
        peak=(start + end) // 2,
        end=end,
        outcome="recovered",
        confidence=confidence,
    )


def labelled(
    block: Block, *labels: Label, name: str = "made-up", tags: tuple[str, ...] = ("llm",)
) -> RealRun:
    """A run with these events; healthy if there are none."""
    return RealRun(
        name=name,
        split="tune",
        label="spikes" if labels else "healthy",
        tags=tags,
        labels=labels,
        block=block,
    )


def quiet_block(rows: int, *, norm: bool = True, seed: int = 0) -> Block:
    """A healthy run, every step logged, from step 0."""
    signals = {"loss": falling_loss(rows, seed=seed), "lr": np.full(rows, 3e-4)}
    if norm:
        signals["grad_norm"] = np.random.default_rng(seed + 1).normal(0.5, 0.05, rows)
    return block_of(signals, first_step=0)
