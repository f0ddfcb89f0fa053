"""F23: weight decay that is far too strong."""

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate


class StrongDecay(Intervention):
    """The decay of all matrices is multiplied; their norms shrink while v and the learning rate are
    normal. A decay of 0 has no visible effect within a small run, so it is not here."""

    cause = Cause.WEIGHT_DECAY
    title = "weight decay that is far too strong"
    strength_name = "times the planned decay"

    @property
    def strength(self) -> float:
        """From 10 to 300 times."""
        return interpolate(10, 300, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Multiply the decay at the onset."""
        groups = parts.run.optimizer.param_groups

        def act(step: int) -> None:
            if step == self.onset:
                for group in groups:
                    group["weight_decay"] *= self.strength
                self.truth["weight_decay"] = max(group["weight_decay"] for group in groups)

        return before_step(parts.run, act)
