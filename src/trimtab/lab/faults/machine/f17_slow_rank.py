"""F17: one rank is slow, and all others wait for it."""

import time

import torch

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Base, Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_output


class SlowRank(Disturbance):
    """The last rank needs longer for its forward pass; a step is as slow as its slowest rank."""

    cause = Cause.SLOW_RANK
    title = "a rank that is slow"
    strength_name = "seconds more per step"
    base = Base.RANKS
    heals = True

    @property
    def steps(self) -> int:
        """60 steps, so that a suite does not sleep for long."""
        return 60

    @property
    def strength(self) -> float:
        """From 30 ms, a step of a small model, to 150 ms."""
        return between(0.03, 0.15, self.severity)

    def attach(self, parts: Parts) -> Run:
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
