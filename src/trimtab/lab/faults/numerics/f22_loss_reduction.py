"""F22: a loss that is summed instead of averaged."""

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_output
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate


class LossReduction(Intervention):
    """The training loss is a multiple of the mean. In half of the runs the logged loss is too; in
    the others only the gradient shows it."""

    cause = Cause.LOSS_REDUCTION_BUG
    title = "a loss summed instead of averaged"
    strength_name = "times the mean"

    @property
    def strength(self) -> float:
        """From 2 to 32, as for that many micro-batches summed instead of averaged."""
        return float(round(interpolate(2, 32, self.severity)))

    def attach(self, parts: RunParts) -> Run:
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
