"""F19: parameters that are no longer updated."""

import math

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate


class Frozen(Intervention):
    """Some parameters stop requiring a gradient. The rest of the model keeps learning."""

    cause = Cause.PARAMETERS_NOT_UPDATING
    title = "parameters that are not updated"
    strength_name = "of the block parameters"

    @property
    def strength(self) -> float:
        """From a tenth of the blocks' tensors to all of them; the embedding keeps learning."""
        return interpolate(0.1, 1.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
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
