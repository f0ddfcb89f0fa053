"""F12: a mean over the targets of a batch that has none: 0/0."""

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_output


class LogicNan(Disturbance):
    """A masked mean written by hand meets a batch whose mask is empty: the loss is NaN and so is
    every gradient. (torch's own cross-entropy gives a NaN loss there, and gradients of 0.)"""

    cause = Cause.LOGIC_NAN
    title = "a batch without any target"
    strength_name = "batches"

    @property
    def steps(self) -> int:
        """As many as the strength says."""
        return round(self.strength)

    @property
    def strength(self) -> float:
        """From a single batch to 8; one is enough to lose a run that has no guard."""
        return between(1, 8, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Divide by the number of targets between onset and end, when it is 0."""
        accumulate = parts.config.accumulate

        def change(step: int, output: Output) -> Output:
            if not self.covers(step):
                return output
            hit = range(self.onset * accumulate, (step + 1) * accumulate)
            self.truth["data_positions"] = list(hit)
            targets = output.loss.new_zeros(())
            spoiled = output.loss * targets / targets
            return output._replace(loss=spoiled, cross_entropy=spoiled)

        change_output(parts.run, parts.forward, change)
        return parts.run
