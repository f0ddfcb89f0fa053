"""F15: the replicas of a model are no longer equal."""

import torch

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class OutOfSync(Intervention):
    """The weights of one rank differ from the others and stay different: ranks average gradients
    but never compare weights."""

    cause = Cause.REPLICAS_OUT_OF_SYNC
    clock = Clock.TICK
    title = "a rank whose weights differ"
    strength_name = "times the size of the weights"
    base = Base.RANKS

    @property
    def strength(self) -> float:
        """From 1 % to the size of the weights themselves."""
        return interpolate(0.01, 1.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Add noise to the weights of the last rank at the onset."""
        if parts.ranks.rank != parts.ranks.size - 1:
            return parts.run
        self.truth["rank"] = parts.ranks.rank
        generator = torch.Generator().manual_seed(self.seed)

        @torch.no_grad()
        def act(step: int) -> None:
            if step != self.onset:
                return
            for parameter in parts.run.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise * self.strength * parameter.square().mean().sqrt())

        return before_step(parts.run, act)
