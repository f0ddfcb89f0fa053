"""Rows: what is remembered of each record, for the facts of an incident."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.incidents import Moment


class Row(NamedTuple):
    """One record, as far as a verdict needs it."""

    tick: int
    step: int
    loss: float | None
    """None if no loss was recorded, which is not the same as NaN."""
    lr: float | None = None
    reward: float | None = None
    is_kept_out: bool = False
    """Whether the update of this step never reached the weights."""
    norm: float | None = None
    """The gradient norm."""

    @property
    def is_finite(self) -> bool:
        """Whether a finite loss was recorded."""
        return self.loss is not None and math.isfinite(self.loss)

    @property
    def moment(self) -> Moment:
        return Moment(step=self.step, tick=self.tick, loss=self.loss)


@dataclass(frozen=True, slots=True)
class Losses:
    """The finite losses among some rows, with their steps."""

    step: FloatArray
    loss: FloatArray

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Losses":
        known = [(row.step, row.loss) for row in rows if row.is_finite]
        steps, losses = np.array(known, dtype=np.float64).reshape(-1, 2).T
        return cls(steps, losses)

    def __len__(self) -> int:
        return len(self.loss)


def newest_attempt(rows: Sequence[Row], shortest: int) -> Sequence[Row]:
    """Return the rows since steps went back last; all of them if those are too few."""
    steps = np.array([row.step for row in rows])
    back = np.flatnonzero(np.diff(steps) <= 0)
    first = int(back[-1]) + 1 if len(back) else 0
    return rows[first:] if len(rows) - first > shortest else rows


def stride_of(rows: Sequence[Row]) -> float:
    """Return the steps from record to record."""
    moves = np.diff([row.step for row in rows[-17:]])
    return max(float(np.median(moves)), 1.0) if len(moves) else 1.0
