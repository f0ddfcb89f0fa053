"""F14: one rank computes wrong gradients, now and then, and does not stop doing so."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Base, Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_gradient

_SHARE_OF_STEPS = 0.2
_ELEMENTS = 64
"""Neighbours that are wrong together: a lane of a matrix unit."""


class BadDevice(Disturbance):
    """On one step in five, some numbers of a gradient on the last rank are far too large."""

    cause = Cause.BAD_DEVICE
    title = "a rank that computes wrong gradients"
    strength_name = "times too large"
    base = Base.RANKS

    @property
    def strength(self) -> float:
        """From 30 times the right value to 30,000 times."""
        return between(30, 30_000, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Spoil the gradients of the last rank."""
        if parts.ranks.rank != parts.ranks.size - 1:
            return parts.run
        self.truth |= {"rank": parts.ranks.rank, "steps": []}
        matrices = [p for p in parts.run.model.parameters() if p.ndim == 2]
        for place, parameter in enumerate(matrices):
            change_gradient(parts.run, parameter, partial(self._spoil, place, len(matrices)))
        return parts.run

    def _spoil(self, place: int, places: int, step: int, gradient: Tensor) -> Tensor:
        if not self.covers(step):
            return gradient
        random = np.random.default_rng([self.seed, step])  # the same draw for all parameters
        is_hit = random.random() < _SHARE_OF_STEPS or step == self.onset
        if not is_hit or int(random.integers(places)) != place:
            return gradient
        if step not in self.truth["steps"]:  # a step may have several micro-batches
            self.truth["steps"].append(step)
        first = int(random.integers(max(gradient.numel() - _ELEMENTS, 1)))
        spoiled = gradient.clone(memory_format=torch.contiguous_format)
        spoiled.view(-1)[first : first + _ELEMENTS].mul_(self.strength)
        return spoiled
