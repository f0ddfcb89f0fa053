"""Curve: the learning rate of a run, simulated step by step before it is begun."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Points = tuple[tuple[int, float], ...]
"""A schedule as (step, rate), with straight lines between."""

MAX_POINTS = 200_000
"""A longer run is simulated at this many evenly spaced steps: a jump is still one, no plan moves by
as much as a tenth between two of them, and the answer comes at once."""


class Shape(StrEnum):
    """How a learning rate comes down."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_RESTARTS = "cosine-restarts"
    SQRT = "sqrt"
    """1 minus the square root of the progress."""
    INVERSE_SQRT = "inverse-sqrt"
    EXPONENTIAL = "exponential"
    """2 * 0.5^progress - 1, as Megatron ends a warm-up-stable-decay schedule."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A learning rate over the steps of a run."""

    step: IntArray
    lr: FloatArray
    warmup: int
    """Points of the curve that belong to the warm-up, as it was declared or else as it looks."""

    @property
    def peak(self) -> float:
        """The highest rate."""
        return float(self.lr.max())

    @property
    def after_warmup(self) -> FloatArray:
        """The rates after the warm-up; empty if it never ends."""
        return self.lr[self.warmup :]

    @property
    def still_rising(self) -> bool:
        """Whether the run ends before its warm-up does, or with the last steps of it."""
        return len(self.after_warmup) < max(0.02 * len(self.lr), 1)

    def at(self, step: int) -> float:
        """The rate of a step; after the end, that of the last step."""
        place = int(np.searchsorted(self.step, step))
        return float(self.lr[min(place, len(self.lr) - 1)])


@lru_cache(maxsize=8)  # a dozen rules use the same curve
def simulate(
    *,
    steps: int,
    lr: float,
    schedule: Shape,
    warmup_steps: int,
    decay_start: int | None,
    decay_end: int | None,
    final_lr: float,
    cycles: float | None,
    holds_after_decay: bool,
    lr_points: Points | None,
) -> Curve:
    """The learning rate of every step of a run."""
    step = np.linspace(0, steps - 1, min(steps, MAX_POINTS)).astype(np.int64)
    if lr_points:
        places, rates = zip(*sorted(lr_points), strict=True)
        values = np.interp(step, places, rates)
        return Curve(step, values, warmup=int(np.argmax(values)))
    begin = warmup_steps if decay_start is None else decay_start
    end = steps if decay_end is None else decay_end
    progress = np.maximum((step - begin) / max(end - begin, 1), 0.0)
    if holds_after_decay:
        progress = np.minimum(progress, 1.0)
    if schedule is Shape.INVERSE_SQRT:
        values = lr * np.sqrt(max(warmup_steps, 1) / np.maximum(step, max(warmup_steps, 1)))
        values = np.maximum(values, final_lr)
    else:
        values = final_lr + (lr - final_lr) * _share(schedule, progress, cycles)
    if warmup_steps > 0:
        # From step 0 on. Some frameworks begin with a rate of 0; no rule looks that closely.
        values = np.where(step < warmup_steps, lr * (step + 1) / warmup_steps, values)
    return Curve(step, values, warmup=int(np.searchsorted(step, warmup_steps)))


def _share(schedule: Shape, progress: FloatArray, cycles: float | None) -> FloatArray:
    """What is left of the way from the peak to the floor."""
    if schedule is Shape.CONSTANT:
        return np.ones_like(progress)
    if schedule is Shape.LINEAR:
        return 1.0 - progress
    if schedule is Shape.SQRT:
        return 1.0 - np.sqrt(progress)
    if schedule is Shape.EXPONENTIAL:
        return 2.0 * 0.5**progress - 1.0
    turns = 0.5 if cycles is None else cycles
    if schedule is Shape.COSINE_RESTARTS:
        descents = 1.0 if cycles is None else cycles
        # The last step belongs to the last descent, not to a new one.
        place = np.where(progress >= 1.0, 1.0, (descents * progress) % 1.0)
        return 0.5 * (1.0 + np.cos(np.pi * place))
    return 0.5 * (1.0 + np.cos(2.0 * np.pi * turns * progress))
