"""Treatments: what an action does to a run, by the same hands that a fault has.

A treatment takes the parts of a run that is built and loaded, and returns them changed. The fault,
if it is still there, comes behind it.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.lab.corpus.data import Batch, Loader
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts
from trimtab.lab.trainer.touch import before_step, scale_rate

Treatment = Callable[[Run], Run]

_NORMS = 50
_OUTLYING = 8.0
"""A gradient so many times the median of the last 50 is thrown away. Measured in exercises: batches
of rare tokens 13 times, a loss that is summed 20, the largest of healthy batches 6."""


@dataclass(kw_only=True)
class Treated(Disturbance):
    """A run that something is done about, and its fault if that is still there."""

    cause = None
    title = "an action"
    strength_name = "none"
    is_fault = False

    treatment: Treatment
    fault: Disturbance | None

    def attach(self, parts: Parts) -> Run:
        """Treat the run, then let the fault get hold of it."""
        run = self.treatment(parts.run)
        if self.fault is None:
            return run
        return self.fault.attach(dataclasses.replace(parts, run=run))


def leave_alone(run: Run) -> Run:
    """Change nothing."""
    return run


def skip_batches(count: int) -> Treatment:
    """Take the data from so many batches further on."""

    def treat(run: Run) -> Run:
        return dataclasses.replace(run, loader=_Skipping(run.loader, count))

    return treat


def lower_rate(factor: float, from_step: int) -> Treatment:
    """Divide the learning rate from a step on."""

    def treat(run: Run) -> Run:
        scale_rate(run, lambda step: 1 / factor if step >= from_step else 1.0)
        return run

    return treat


def discard_outliers(run: Run) -> Run:
    """Let no update through whose gradient is not finite, or far larger than those before it."""
    squares: list[float] = []
    norms: deque[float] = deque(maxlen=_NORMS)

    def measure(parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            squares.append(float(parameter.grad.double().square().sum()))

    def gate(optimizer: torch.optim.Optimizer, *call: Any) -> None:
        norm = math.sqrt(sum(squares)) / run.scaler.get_scale()
        if norm <= _OUTLYING * float(np.median(norms or [norm])):  # False for NaN
            norms.append(norm)
        else:
            optimizer.zero_grad()

    # As it is computed: the optimizer gets to see a gradient that is clipped already.
    for parameter in run.model.parameters():
        parameter.register_post_accumulate_grad_hook(measure)
    run.optimizer.register_step_pre_hook(gate)
    return before_step(run, lambda step: squares.clear())


class _Skipping:
    """A loader that leaves out its first batches."""

    def __init__(self, loader: Loader, count: int) -> None:
        self._loader = loader
        self._count = count

    def __iter__(self) -> Iterator[Batch]:
        return islice(self._loader, self._count, None)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
