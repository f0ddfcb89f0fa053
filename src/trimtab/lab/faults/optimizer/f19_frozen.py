"""F19: parameters that are not updated any more."""

import math

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import before_step


class Frozen(Disturbance):
    """Some parameters stop asking for a gradient. The rest of the model learns around them."""

    cause = Cause.PARAMETERS_NOT_UPDATING
    title = "parameters that are not updated"
    strength_name = "share of the block parameters"

    @property
    def strength(self) -> float:
        """From a tenth of the blocks' tensors to all of them; the embedding goes on learning."""
        return between(0.1, 1.0, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Freeze them at the onset."""
        named = list(parts.run.model.blocks.named_parameters())
        count = math.ceil(self.strength * len(named))
        chosen = sorted(self.random.permutation(len(named))[:count].tolist())
        self.truth["parameters"] = [f"blocks.{named[place][0]}" for place in chosen]

        def act(step: int) -> None:
            if step == self.onset:
                for place in chosen:
                    named[place][1].requires_grad_(False)

        return before_step(parts.run, act)
