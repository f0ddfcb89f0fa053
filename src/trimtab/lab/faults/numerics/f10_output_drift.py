"""F10: the logits of the output grow, and log Z with them."""

import torch

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import before_step


class OutputDrift(Disturbance):
    """The gain of the last norm grows by a share at every step: the model becomes too sure."""

    cause = Cause.OUTPUT_LOGIT_DRIFT
    title = "output logits that grow"
    strength_name = "growth of the last norm's gain per step"

    @property
    def strength(self) -> float:
        """From 0.3 % a step to 2 %."""
        return between(0.003, 0.02, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Grow the gain in front of each step from the onset on."""
        gain = parts.run.model.norm.weight

        @torch.no_grad()
        def act(step: int) -> None:
            if self.covers(step):
                gain.mul_(1 + self.strength)

        return before_step(parts.run, act)
