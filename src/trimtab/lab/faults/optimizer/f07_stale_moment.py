"""F07: a second moment that remembers a calmer time, and forgets too slowly to notice."""

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import before_step

_SLOW_BETA2 = 0.9999
"""A memory of 10,000 steps: longer than any run of the lab."""


class StaleMoment(Disturbance):
    """v shrinks to what it was when gradients were small, and beta2 keeps it there: each update is
    divided by far too little."""

    cause = Cause.STALE_SECOND_MOMENT
    title = "a second moment far behind the gradient"
    strength_name = "times smaller than it should be"

    @property
    def strength(self) -> float:
        """From a tenth of the right value to a ten-thousandth."""
        return between(10, 10_000, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Shrink v at the onset and stretch its memory from there on."""
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
