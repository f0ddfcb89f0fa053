"""F05: the learning rate jumps up and back."""

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import scale_lr
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate


class RateJump(Intervention):
    """For some steps the learning rate is multiplied, as by two schedules joined incorrectly."""

    cause = Cause.LR_DISCONTINUITY
    title = "a jump in the learning rate"
    strength_name = "times the planned learning rate"
    heals = True

    @property
    def steps(self) -> int:
        """5 to 40 steps."""
        return int(self.random.integers(5, 41))

    @property
    def strength(self) -> float:
        """From 3 to 40 times the planned learning rate."""
        return interpolate(3, 40, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Multiply the learning rate from onset to end."""
        scale_lr(parts.run, lambda step: self.strength if self.covers(step) else 1.0)
        return parts.run
