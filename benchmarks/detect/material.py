"""What every contender sits: each real run as it is, and the faults injected into the healthy ones.

Faults of one step's length make sense only where every step is logged, and a shift of 0.1 only
where the loss is that of pretraining; so healthy, every-step, pretraining runs are injected, from
row 1,000 on, where the longest window of any rule is full.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.kit.public_runs import RealRun

from benchmarks.detect.contenders import Fork
from benchmarks.detect.injections import LONGEST, SHAPES, fork_at
from trimtab.core.block import Block
from trimtab.core.signals import GRAD_NORM

POINTS = 100
FIRST_ROW = 1000
SEED = 20260101
WITH_NORM, LOSS_ONLY = "loss and norm", "loss only"
VARIANTS = (WITH_NORM, LOSS_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """One run as a contender sees it, with the futures it may take."""

    run: RealRun
    block: Block
    variant: str
    forks: tuple[Fork, ...]

    @property
    def is_real(self) -> bool:
        """Whether the contender sees the run as it was logged, with nothing left out."""
        return self.block is self.run.block


def sittings(runs: Sequence[RealRun], points: int = POINTS) -> list[Sitting]:
    """All runs of one split, with `points` injections of each kind for each variant."""
    chosen = {variant: _injection_rows(runs, variant, points) for variant in VARIANTS}
    everything = []
    for run in runs:
        whole = WITH_NORM if has_norm(run) else LOSS_ONLY
        everything.append(_sitting(run, run.block, whole, chosen[whole].get(run.name, [])))
        if has_norm(run) and run.name in chosen[LOSS_ONLY]:
            bare = without_norm(run.block)
            everything.append(_sitting(run, bare, LOSS_ONLY, chosen[LOSS_ONLY][run.name]))
    return everything


def has_norm(run: RealRun) -> bool:
    return run.block.column(GRAD_NORM).recorded


def can_be_injected(run: RealRun) -> bool:
    """Whether a fault in this run would mean what it says."""
    long_enough = len(run.block) > FIRST_ROW + LONGEST
    odd = {"sft", "very_noisy"} & set(run.tags)
    return run.label == "healthy" and run.is_every_step and long_enough and not odd


def without_norm(block: Block) -> Block:
    """The run as if nobody had logged its gradient norm."""
    columns = {name: column for name, column in block.columns.items() if name != GRAD_NORM}
    return dataclasses.replace(block, columns=columns)


def _sitting(run: RealRun, block: Block, variant: str, rows: Sequence[int]) -> Sitting:
    forks = tuple(fork_at(block, row, shape) for row in rows for shape in SHAPES)
    return Sitting(run=run, block=block, variant=variant, forks=forks)


def _injection_rows(runs: Sequence[RealRun], variant: str, points: int) -> dict[str, list[int]]:
    """Rows drawn evenly from all that can be injected, by run."""
    fit = [run for run in runs if can_be_injected(run) and (variant != WITH_NORM or has_norm(run))]
    places = [
        (run.name, row) for run in fit for row in range(FIRST_ROW, len(run.block) - LONGEST + 1)
    ]
    if not places:
        return {}
    draw = np.random.default_rng(SEED)
    rows: dict[str, list[int]] = {}
    for at in sorted(draw.choice(len(places), points, replace=False)):
        name, row = places[at]
        rows.setdefault(name, []).append(row)
    return rows
