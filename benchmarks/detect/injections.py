"""Faults of known shape, put into healthy runs at known rows.

A shape changes losses and gradient norms from its first row on; everything else of the run goes on
as it was. Each has a window in which an alarm finds it and, if it is a spike, a peak.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.detect.contenders import Fork
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
HARD = (SMALL, SHIFT, DRIFT)
"""What quiet detectors miss."""

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
