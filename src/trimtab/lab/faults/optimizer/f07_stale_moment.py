"""F07: a second moment that is too small for the gradient and adapts too slowly."""

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate

_SLOW_BETA2 = 0.9999
"""Averages over 10,000 steps: longer than any run of the lab."""


class StaleMoment(Intervention):
    """v shrinks as if gradients had been small, and a large beta2 keeps it small: each update is
    divided by far too little."""

    cause = Cause.STALE_SECOND_MOMENT
    title = "a second moment far too small for the gradient"
    strength_name = "times too small"

    @property
    def strength(self) -> float:
        """From a tenth of the correct value to a ten-thousandth."""
        return interpolate(10, 10_000, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Shrink v at the onset and raise beta2 from there on."""
        optimizer = parts.run.optimizer

        def act(step: int) -> None:
            if step != self.onset:
                return
            for state in optimizer.state.values():
                state["exp_avg_sq"].div_(self.strength)
            for group in optimizer.param_groups:
                group["betas"] = (group["betas"][0], _SLOW_BETA2)
            self.truth["beta2"] = _SLOW_BETA2

        return before_step(parts.run, act)
