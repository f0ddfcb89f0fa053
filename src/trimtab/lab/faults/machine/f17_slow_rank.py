"""F17: one rank is slow, and the others wait for it."""

import time

import torch

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_output
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class SlowRank(Intervention):
    """The forward pass of the last rank takes longer; a step is as slow as its slowest rank."""

    cause = Cause.SLOW_RANK
    clock = Clock.TICK
    title = "a slow rank"
    strength_name = "extra seconds per step"
    base = Base.RANKS
    heals = True

    @property
    def steps(self) -> int:
        """60 steps, to keep the suite fast."""
        return 60

    @property
    def strength(self) -> float:
        """From 30 ms, about one step of a small model, to 150 ms."""
        return interpolate(0.03, 0.15, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Sleep in the forward pass of the last rank."""
        self.truth["rank"] = parts.ranks.size - 1
        if parts.ranks.rank != parts.ranks.size - 1:
            return parts.run

        def change(step: int, output: Output) -> Output:
            if self.covers(step) and torch.is_grad_enabled():
                time.sleep(self.strength)
            return output

        change_output(parts.run, parts.forward, change)
        return parts.run
