"""F22: a loss that is summed where it should be averaged."""

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_output


class LossReduction(Disturbance):
    """The loss that is trained on is a multiple of the mean. In half of all runs the logged one is
    too, in the others only the gradient tells."""

    cause = Cause.LOSS_REDUCTION_BUG
    title = "a loss summed instead of averaged"
    strength_name = "times the mean"

    @property
    def strength(self) -> float:
        """From 2 micro-batches that are not averaged to 32."""
        return float(round(between(2, 32, self.severity)))

    def attach(self, parts: Parts) -> Run:
        """Multiply the loss from the onset on."""
        is_logged = bool(self.random.integers(2))
        self.truth["logged_loss_too"] = is_logged

        def change(step: int, output: Output) -> Output:
            if not self.covers(step):
                return output
            logged = output.cross_entropy * (self.strength if is_logged else 1.0)
            return output._replace(loss=output.loss * self.strength, cross_entropy=logged)

        change_output(parts.run, parts.forward, change)
        return parts.run
