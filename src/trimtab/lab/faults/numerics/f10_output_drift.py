"""F10: the output logits grow, and log Z with them."""

import torch

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate


class OutputDrift(Intervention):
    """The gain of the last norm grows at every step: the model becomes overconfident."""

    cause = Cause.OUTPUT_LOGIT_DRIFT
    title = "growing output logits"
    strength_name = "growth of the last norm's gain per step"

    @property
    def strength(self) -> float:
        """From 0.3 % per step to 2 %."""
        return interpolate(0.003, 0.02, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Scale the gain up before each step from the onset on."""
        gain = parts.run.model.norm.weight

        @torch.no_grad()
        def act(step: int) -> None:
            if self.covers(step):
                gain.mul_(1 + self.strength)

        return before_step(parts.run, act)
