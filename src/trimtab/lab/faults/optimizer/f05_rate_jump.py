"""F05: the learning rate jumps, and comes back."""

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import scale_rate


class RateJump(Disturbance):
    """For some steps the rate is multiplied, as by a schedule that is badly stitched."""

    cause = Cause.LR_DISCONTINUITY
    title = "a jump of the learning rate"
    strength_name = "times the planned rate"
    heals = True

    @property
    def steps(self) -> int:
        """5 to 40 steps."""
        return int(self.random.integers(5, 41))

    @property
    def strength(self) -> float:
        """From 3 to 40 times the planned rate."""
        return between(3, 40, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Multiply the rates between onset and end."""
        scale_rate(parts.run, lambda step: self.strength if self.covers(step) else 1.0)
        return parts.run
