"""F12: a mean over zero targets: 0/0."""

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_output
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class LogicNan(Intervention):
    """A hand-written masked mean gets a batch with an empty mask: the loss and every gradient are
    NaN. (torch's own cross-entropy gives a NaN loss and gradients of 0.)"""

    cause = Cause.LOGIC_NAN
    clock = Clock.DATA
    title = "a batch without targets"
    strength_name = "batches"

    @property
    def steps(self) -> int:
        """The number of batches."""
        return round(self.strength)

    @property
    def strength(self) -> float:
        """From a single batch to 8; one is enough to destroy an unprotected run."""
        return interpolate(1, 8, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """From onset to end, divide the loss by a target count of 0."""
        accumulate = parts.config.accumulate

        def change(step: int, output: Output) -> Output:
            if not self.covers(step):
                return output
            hit = range(self.onset * accumulate, (step + 1) * accumulate)
            self.truth["data_positions"] = list(hit)
            targets = output.loss.new_zeros(())
            nan_loss = output.loss * targets / targets
            return output._replace(loss=nan_loss, cross_entropy=nan_loss)

        change_output(parts.run, parts.forward, change)
        return parts.run
