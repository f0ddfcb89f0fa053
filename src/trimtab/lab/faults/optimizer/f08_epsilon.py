"""F08: an epsilon that is no longer small."""

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate


class LargeEpsilon(Intervention):
    """Adam's epsilon exceeds the root of v: updates shrink where gradients are small."""

    cause = Cause.EPSILON_REGIME
    title = "epsilon larger than the root of the second moment"
    strength_name = "as epsilon"

    @property
    def strength(self) -> float:
        """From 1e-4, about the root of v in a small model, to 1e-1."""
        return interpolate(1e-4, 1e-1, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Set epsilon at the onset."""
        groups = parts.run.optimizer.param_groups

        def act(step: int) -> None:
            if step == self.onset:
                self.truth["epsilon_before"] = groups[0]["eps"]
                for group in groups:
                    group["eps"] = self.strength

        return before_step(parts.run, act)
