"""Faults of known shape, put into healthy public runs at rows that are drawn.

A shape changes losses and gradient norms from its first row on; everything else of the run goes on
as it was. Each has a window in which an alarm finds it and, if it is a spike, a peak. A fork is
such another future of a run: the same records up to a row, then a tail with the fault in it.

Faults of one step's length make sense only where every step is logged, and a shift of 0.1 only
where the loss is that of pretraining; so healthy, every-step, pretraining runs are injected, from
row 1,000 on, where the longest window of any rule is full.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tests.kit.public_runs import RealRun

from trimtab.core.block import Block, Column, FloatArray
from trimtab.core.signals import GRAD_NORM, LOSS

BLOOM_LOSS = (2.220424, 2.595213, 2.241558, 2.345279, 5.098124, 3.492029, 3.213059, 2.804948)
BLOOM_NORM = (0.947, 2.390, 15.886, 145.119, 960.351, 353.201, 379.330, 650.246)
"""The first loss spike of BLOOM-176B, iterations 31215 to 31222, as its log was published
(bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles.md, 2022-04-12)."""

BLOOM_BEFORE = (2.198845, 0.242)
"""Loss and norm of iteration 31214, the last one before it."""
BLOOM_AFTER = (2.215699, 0.267)
"""Loss and norm of iteration 31250, the next one that was published."""
BLOOM_ROWS = 31250 - 31215 + 1
BLOOM_PEAK = 4

SECOND_AFTER = 40
NAN_BEFORE = 60
SMALL_ROWS, SMALL_LOSS, SMALL_NORM = 3, 0.25, 2.5
GRACE_ROWS = 2
"""A rule may wait this many rows after a short spike before it is too late."""
SHIFT_LOSS, SHIFT_ROWS = 0.10, 300
DRIFT_LOSS, DRIFT_ROWS = 4e-4, 1200

POINTS = 100
FIRST_ROW = 1000
SEED = 20260101
WITH_NORM, LOSS_ONLY = "loss and norm", "loss only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Another future of a run, with one fault that should be found."""

    kind: str
    row: int
    """The row of the run that the first row of the tail takes the place of."""
    tail: Block
    start: int
    """The row of the tail at which the fault to be found begins."""
    last: int
    """The last row of the tail in which an alarm finds it."""
    peak: int | None
    """The row of the tail with the largest loss, if the fault has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a shape does: added to the loss, multiplied with the norm, row by row."""

    loss: FloatArray
    norm: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of fault."""

    kind: str
    change: Callable[[], Change]
    start: int = 0
    peak: int | None = None


def bloom() -> Change:
    """The published spike; the rows that were not published decay evenly to the ones that were."""
    loss = np.subtract(BLOOM_LOSS, BLOOM_BEFORE[0])
    norm = np.divide(BLOOM_NORM, BLOOM_BEFORE[1])
    hidden = BLOOM_ROWS - len(loss) + 1
    end_loss, end_norm = BLOOM_AFTER[0] - BLOOM_BEFORE[0], BLOOM_AFTER[1] / BLOOM_BEFORE[1]
    return Change(
        loss=np.concatenate((loss, np.geomspace(loss[-1], end_loss, hidden)[1:])),
        norm=np.concatenate((norm, np.geomspace(norm[-1], end_norm, hidden)[1:])),
    )


def _late_bloom(rows: int, before: Change) -> Change:
    """The published spike `rows` after something else."""
    spike = bloom()
    gap = rows - len(before.loss)
    return Change(
        loss=np.concatenate((before.loss, np.zeros(gap), spike.loss)),
        norm=np.concatenate((before.norm, np.ones(gap), spike.norm)),
    )


def _second() -> Change:
    return _late_bloom(SECOND_AFTER, bloom())


def _after_nan() -> Change:
    nan = np.array([np.nan])
    return _late_bloom(NAN_BEFORE, Change(loss=nan, norm=nan))


def _small() -> Change:
    rest = np.zeros(GRACE_ROWS)
    return Change(
        loss=np.concatenate((np.full(SMALL_ROWS, SMALL_LOSS), rest)),
        norm=np.concatenate((np.full(SMALL_ROWS, SMALL_NORM), rest + 1)),
    )


def _shift() -> Change:
    return Change(loss=np.full(SHIFT_ROWS, SHIFT_LOSS), norm=np.ones(SHIFT_ROWS))


def _drift() -> Change:
    return Change(loss=DRIFT_LOSS * np.arange(1.0, DRIFT_ROWS + 1), norm=np.ones(DRIFT_ROWS))


SMALL, SHIFT, DRIFT = "small spike", "shift 0.10", "drift 4e-4"

SHAPES = (
    Shape(kind="BLOOM spike", change=bloom, peak=BLOOM_PEAK),
    Shape(kind=SMALL, change=_small),
    Shape(kind="second spike", change=_second, start=SECOND_AFTER, peak=SECOND_AFTER + BLOOM_PEAK),
    Shape(
        kind="spike after NaN", change=_after_nan, start=NAN_BEFORE, peak=NAN_BEFORE + BLOOM_PEAK
    ),
    Shape(kind=SHIFT, change=_shift),
    Shape(kind=DRIFT, change=_drift),
)
LONGEST = max(SHIFT_ROWS, DRIFT_ROWS)


def fork_at(run: Block, row: int, shape: Shape) -> Fork:
    """The future of a run in which the fault happens at a row."""
    change = shape.change()
    length = len(change.loss)
    tail = run[row : row + length]
    loss, norm = tail.column(LOSS), tail.column(GRAD_NORM)
    columns = dict(tail.columns)
    columns[LOSS] = Column(loss.values + change.loss, loss.present)
    if GRAD_NORM in columns:
        columns[GRAD_NORM] = Column(norm.values * change.norm, norm.present)
    return Fork(
        kind=shape.kind,
        row=row,
        tail=dataclasses.replace(tail, columns=columns),
        start=shape.start,
        last=length - 1,
        peak=shape.peak,
    )


def injected(
    runs: Sequence[RealRun], variant: str, points: int = POINTS
) -> Iterator[tuple[Block, list[Fork]]]:
    """Draw rows evenly from all that can be injected; each run with its forks.

    Seen by the loss alone, only the first shape is injected.
    """
    fit = {
        run.name: run.block
        for run in runs
        if _can_be_injected(run) and (variant == LOSS_ONLY or run.block.column(GRAD_NORM).recorded)
    }
    rows = [
        (name, row)
        for name, block in fit.items()
        for row in range(FIRST_ROW, len(block) - LONGEST + 1)
    ]
    if not rows:
        return
    chosen: dict[str, list[int]] = {}
    for at in sorted(np.random.default_rng(SEED).choice(len(rows), points, replace=False)):
        name, row = rows[at]
        chosen.setdefault(name, []).append(row)
    for name, some in chosen.items():
        block = fit[name]
        if variant == LOSS_ONLY:
            kept = {signal: v for signal, v in block.columns.items() if signal != GRAD_NORM}
            block = dataclasses.replace(block, columns=kept)
        shapes = SHAPES if variant == WITH_NORM else SHAPES[:1]
        yield block, [fork_at(block, row, shape) for row in some for shape in shapes]


def _can_be_injected(run: RealRun) -> bool:
    """Whether a fault in this run would mean what it says."""
    long_enough = len(run.block) > FIRST_ROW + LONGEST
    odd = {"sft", "very_noisy"} & set(run.tags)
    return run.label == "healthy" and run.is_every_step and long_enough and not odd
