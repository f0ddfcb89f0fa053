"""F13: one bit of one number flips, in a gradient or in a weight."""

import math

import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step, change_gradient
from trimtab.lab.trainer.intervention import Intervention, RunParts
from trimtab.lab.trainer.run_clock import Clock

_LOWEST, _HIGHEST = 23, 30
"""The exponent bits of a float32. Bit 30 is 0 in every number below 2; flipping it multiplies by
2^128. The others are mostly 1 there; flipping them makes a number tiny, with no visible effect."""


class _BitFlip(Intervention):
    cause = Cause.BIT_FLIP
    clock = Clock.TICK
    strength_name = "(bit number)"

    @property
    def strength(self) -> float:
        """From the lowest exponent bit to the highest."""
        return _LOWEST + math.ceil((_HIGHEST - _LOWEST) * self.severity)

    def _choose(self, parts: RunParts) -> tuple[str, nn.Parameter, int]:
        """A random element of a random matrix."""
        matrices = [(n, p) for n, p in parts.run.model.named_parameters() if p.ndim == 2]
        name, parameter = matrices[int(self.random.integers(len(matrices)))]
        element = int(self.random.spawn(1)[0].integers(parameter.numel()))
        return name, parameter, element

    def _flip(self, name: str, values: Tensor, element: int) -> None:
        """Flip the bit in place; the tensor is float32 and contiguous."""
        bit = int(self.strength)
        number = values.view(-1)[element : element + 1]
        self.truth |= {"tensor": name, "element": element, "bit": bit, "before": number.item()}
        number.view(torch.int32).bitwise_xor_(1 << bit)
        self.truth["after"] = number.item()


class GradientBitFlip(_BitFlip):
    """A bit of a gradient flips on one rank before averaging, for one step."""

    title = "a bit flip in a gradient"
    heals = True

    @property
    def steps(self) -> int:
        """One gradient."""
        return 1

    def attach(self, parts: RunParts) -> Run:
        """Flip it on the last rank."""
        if parts.ranks.rank != parts.ranks.size - 1:
            return parts.run
        name, parameter, element = self._choose(parts)
        self.truth["rank"] = parts.ranks.rank

        def change(step: int, gradient: Tensor) -> Tensor:
            if step != self.onset:
                return gradient
            flipped = gradient.clone(memory_format=torch.contiguous_format)
            self._flip(name, flipped, element)
            return flipped

        change_gradient(parts.run, parameter, change)
        return parts.run


class WeightBitFlip(_BitFlip):
    """A bit of a weight flips on one rank between two steps, and stays flipped."""

    title = "a bit flip in a weight"

    def attach(self, parts: RunParts) -> Run:
        """Flip it on the last rank."""
        if parts.ranks.rank != parts.ranks.size - 1:
            return parts.run
        name, parameter, element = self._choose(parts)
        self.truth["rank"] = parts.ranks.rank

        @torch.no_grad()
        def act(step: int) -> None:
            if step == self.onset:
                self._flip(name, parameter, element)

        return before_step(parts.run, act)
