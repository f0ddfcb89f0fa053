"""F14: one rank computes wrong gradients at some steps, until the end of the run."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_gradient
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock

_SHARE_OF_STEPS = 0.2
_ELEMENTS = 64
"""Neighbouring elements that are wrong together: a lane of a matrix unit."""


class BadDevice(Intervention):
    """In one step of five, some elements of a gradient on the last rank are far too large."""

    cause = Cause.BAD_DEVICE
    clock = Clock.TICK
    title = "a rank that computes wrong gradients"
    strength_name = "times too large"
    base = Base.RANKS

    @property
    def strength(self) -> float:
        """From 30 times the right value to 30,000 times."""
        return interpolate(30, 30_000, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Corrupt the gradients of the last rank."""
        if parts.ranks.rank != parts.ranks.size - 1:
            return parts.run
        self.truth |= {"rank": parts.ranks.rank, "steps": []}
        matrices = [p for p in parts.run.model.parameters() if p.ndim == 2]
        for place, parameter in enumerate(matrices):
            change_gradient(parts.run, parameter, partial(self._corrupt, place, len(matrices)))
        return parts.run

    def _corrupt(self, place: int, places: int, step: int, gradient: Tensor) -> Tensor:
        if not self.covers(step):
            return gradient
        random = np.random.default_rng([self.seed, step])  # the same draw for all parameters
        is_hit = random.random() < _SHARE_OF_STEPS or step == self.onset
        if not is_hit or int(random.integers(places)) != place:
            return gradient
        if step not in self.truth["steps"]:  # a step may have several micro-batches
            self.truth["steps"].append(step)
        first = int(random.integers(max(gradient.numel() - _ELEMENTS, 1)))
        corrupted = gradient.clone(memory_format=torch.contiguous_format)
        corrupted.view(-1)[first : first + _ELEMENTS].mul_(self.strength)
        return corrupted
