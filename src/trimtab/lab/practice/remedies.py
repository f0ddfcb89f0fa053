"""Remedies: what an action changes in a run, through the same injection points as a fault.

A remedy takes a run that is built and loaded and returns it changed. If the fault is still active,
it is attached after the remedy.
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
from trimtab.lab.trainer.injection import before_step, scale_lr
from trimtab.lab.trainer.intervention import Intervention, RunParts

Remedy = Callable[[Run], Run]

_NORM_HISTORY = 50
_OUTLIER_RATIO = 8.0
"""A gradient norm above this many times the median of the last 50 is discarded. Measured in
exercises: batches of rare tokens 13 times, a summed loss 20, the largest healthy batch 6."""


@dataclass(kw_only=True)
class RemedyAndFault(Intervention):
    """A remedy, followed by the fault if that is still active."""

    cause = None
    title = "an action"
    strength_name = "none"
    is_fault = False

    remedy: Remedy
    fault: Intervention | None

    def attach(self, parts: RunParts) -> Run:
        """Apply the remedy, then attach the fault."""
        run = self.remedy(parts.run)
        if self.fault is None:
            return run
        return self.fault.attach(dataclasses.replace(parts, run=run))


def no_remedy(run: Run) -> Run:
    """Change nothing."""
    return run


def skip_batches(count: int) -> Remedy:
    """Skip the next `count` batches."""

    def apply(run: Run) -> Run:
        return dataclasses.replace(run, loader=_SkippingLoader(run.loader, count))

    return apply


def lower_lr(factor: float, from_step: int) -> Remedy:
    """Divide the learning rate from a step on."""

    def apply(run: Run) -> Run:
        scale_lr(run, lambda step: 1 / factor if step >= from_step else 1.0)
        return run

    return apply


def discard_outliers(run: Run) -> Run:
    """Discard updates whose gradient is not finite, or far larger than the recent ones."""
    squares: list[float] = []
    norms: deque[float] = deque(maxlen=_NORM_HISTORY)

    def measure(parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            squares.append(float(parameter.grad.double().square().sum()))

    def gate(optimizer: torch.optim.Optimizer, *call: Any) -> None:
        norm = math.sqrt(sum(squares)) / run.scaler.get_scale()
        if norm <= _OUTLIER_RATIO * float(np.median(norms or [norm])):  # False for NaN
            norms.append(norm)
        else:
            optimizer.zero_grad()

    # Measured as it is computed: when the optimizer runs, the gradient is already clipped.
    for parameter in run.model.parameters():
        parameter.register_post_accumulate_grad_hook(measure)
    run.optimizer.register_step_pre_hook(gate)
    return before_step(run, lambda step: squares.clear())


class _SkippingLoader:
    """A loader that skips its first batches."""

    def __init__(self, loader: Loader, count: int) -> None:
        self._loader = loader
        self._count = count

    def __iter__(self) -> Iterator[Batch]:
        return islice(self._loader, self._count, None)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
