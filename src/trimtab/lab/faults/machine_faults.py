"""Faults of machines, ranks and restarts: F13 to F18."""

import dataclasses
import math
import time
from collections import deque
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Base,
    BatchChange,
    Intervention,
    OutputChange,
    RunParts,
    StateChange,
    WrappedLoader,
    before_step,
    change_batches,
    change_gradient,
)

_LOWEST, _HIGHEST = 23, 30
"""The exponent bits of a float32. Bit 30 is 0 in every number below 2; flipping it multiplies by
2^128. The others are mostly 1 there; flipping them makes a number tiny, with no visible effect."""


class _OnLastRank(Intervention):
    """Acts on the last rank alone."""

    def is_here(self, parts: RunParts) -> bool:
        if parts.ranks.rank != parts.ranks.size - 1:
            return False
        self.truth["rank"] = parts.ranks.rank
        return True


class _BitFlip(_OnLastRank):
    cause = Cause.BIT_FLIP
    strength_name = "(bit number)"

    @property
    def strength(self) -> float:
        return _LOWEST + math.ceil((_HIGHEST - _LOWEST) * self.severity)

    def _choose(self, parts: RunParts) -> tuple[str, nn.Parameter, int]:
        matrices = [(n, p) for n, p in parts.run.model.named_parameters() if p.ndim == 2]
        name, parameter = matrices[int(self.random.integers(len(matrices)))]
        element = int(self.random.spawn(1)[0].integers(parameter.numel()))
        return name, parameter, element

    def _flip(self, name: str, values: Tensor, element: int) -> None:
        """Flip the bit in place; the tensor is float32 and contiguous."""
        bit = int(self.strength)
        # As hardware does: what is written through `.data` is not counted as a new version.
        number = values.data.view(-1)[element : element + 1]
        self.truth |= {"tensor": name, "element": element, "bit": bit, "before": number.item()}
        number.view(torch.int32).bitwise_xor_(1 << bit)
        self.truth["after"] = number.item()


class GradientBitFlip(_BitFlip):
    """A bit of a gradient flips on one rank before averaging, for one step."""

    title = "a bit flip in a gradient"
    heals = True
    lasts = 1

    def attach(self, parts: RunParts) -> LabRun:
        if not self.is_here(parts):
            return parts.run
        name, parameter, element = self._choose(parts)

        def change(step: int, gradient: Tensor) -> Tensor:
            if step != self.onset:
                return gradient
            flipped = gradient.clone(memory_format=torch.contiguous_format)
            self._flip(name, flipped, element)
            return flipped

        change_gradient(parts.run, parameter, change)
        return parts.run


class WeightBitFlip(_BitFlip, StateChange):
    """A bit of a weight flips on one rank between two steps, and stays flipped."""

    title = "a bit flip in a weight"

    def act(self, parts: RunParts) -> None:
        self._flip(*self._choose(parts))


_SHARE_OF_STEPS = 0.2
_ELEMENTS = 64
"""Neighbouring elements that are wrong together: a lane of a matrix unit."""


class BadDevice(_OnLastRank):
    """In one step of five, some elements of a gradient on the last rank are far too large."""

    cause = Cause.BAD_DEVICE
    title = "a rank that computes wrong gradients"
    strength_name = "times too large"
    strengths = (30, 30_000)
    base = Base.RANKS

    def attach(self, parts: RunParts) -> LabRun:
        if not self.is_here(parts):
            return parts.run
        self.truth["steps"] = []
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


class OutOfSync(_OnLastRank, StateChange):
    """The weights of one rank differ from the others and stay different: ranks average gradients
    but never compare weights."""

    cause = Cause.REPLICAS_OUT_OF_SYNC
    title = "a rank whose weights differ"
    strength_name = "times the size of the weights"
    strengths = (0.01, 1.0)
    base = Base.RANKS

    def act(self, parts: RunParts) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        for parameter in parts.run.model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * self.strength * parameter.square().mean().sqrt())


_EVERY = 5


class LoaderStall(BatchChange):
    """For 20 steps, every fifth batch is late. The trained numbers do not change."""

    cause = Cause.LOADER_STALL
    title = "batches that arrive late"
    strength_name = "seconds"
    strengths = (0.25, 2.0)
    """From a quarter of a second, about ten steps of a small model, to two seconds."""
    heals = True
    lasts = 4 * _EVERY

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
        is_first = batch.position % parts.config.accumulate == 0
        if is_first and (step - self.onset) % _EVERY == 0:
            self.truth.setdefault("stalled_steps", []).append(step)
            time.sleep(self.strength)
        return batch


class SlowRank(_OnLastRank, OutputChange):
    """The forward pass of the last rank takes longer; a step is as slow as its slowest rank."""

    cause = Cause.SLOW_RANK
    title = "a slow rank"
    strength_name = "extra seconds per step"
    strengths = (0.03, 0.15)
    """From 30 ms, about one step of a small model, to 150 ms."""
    base = Base.RANKS
    heals = True
    lasts = 60  # to keep the suite fast

    def change(self, step: int, output: Output, parts: RunParts) -> Output:
        time.sleep(self.strength)
        return output


class WrongWeights(Intervention):
    """After the resume, the weights are those of an earlier step; everything else is correct."""

    cause = Cause.WRONG_RESUME
    title = "old weights after a resume"
    strength_name = "of the steps back to the start"
    strengths = (0.1, 0.9)
    base = Base.RESUME
    _kept: dict[str, Tensor]

    def attach(self, parts: RunParts) -> LabRun:
        """Keep the weights of an earlier step and load them after the resume."""
        source = self.onset - max(1, round(self.strength * self.onset))
        if parts.first_step == self.onset:
            parts.run.model.load_state_dict(self._kept)
            self.truth["weights_of_step"] = source
            return parts.run

        def act(step: int) -> None:
            if step == source:
                state = parts.run.model.state_dict()
                self._kept = {name: value.clone() for name, value in state.items()}

        return before_step(parts.run, act)


class WrongPosition(Intervention):
    """After the resume, the data continues from an earlier position: batches are seen twice."""

    cause = Cause.WRONG_RESUME
    title = "an old data position after a resume"
    strength_name = "steps back"
    strengths = (10, 200)
    base = Base.RESUME
    _seen: deque[Batch]

    def attach(self, parts: RunParts) -> LabRun:
        back = round(self.strength) * parts.config.accumulate
        if parts.first_step == self.onset:
            self.truth["data_positions"] = [batch.position for batch in self._seen]
            again = list(self._seen)
            rewound = WrappedLoader(parts.run.loader, lambda batches: chain(again, batches))
            return dataclasses.replace(parts.run, loader=rewound)
        self._seen = deque(maxlen=back)

        def change(step: int, batch: Batch) -> Batch:
            if step < self.onset:
                self._seen.append(batch)
            return batch

        return change_batches(parts.run, change)
