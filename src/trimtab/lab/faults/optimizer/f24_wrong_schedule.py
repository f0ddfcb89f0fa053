"""F24: a learning rate that rises where it should fall."""

from functools import partial

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import scale_lr
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.schedule import lr_factor


class WrongSchedule(Intervention):
    """From the onset on, the schedule is inverted: the learning rate rises where it should fall."""

    cause = Cause.WRONG_SCHEDULE
    title = "a schedule with the wrong sign"
    strength_name = "times the planned decrease, upwards (log scale)"

    @property
    def strength(self) -> float:
        """From half of the planned decrease, as an increase, to twice."""
        return interpolate(0.5, 2.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Mirror the schedule at the last learning rate before the onset."""
        config = parts.config
        last = max(self.onset - 1, 0)
        planned = partial(lr_factor, warmup=config.warmup, steps=config.steps)

        def factor(step: int) -> float:
            if not self.covers(step):
                return 1.0
            decrease = planned(last) / planned(step)
            return float(decrease ** (1 + self.strength))

        scale_lr(parts.run, factor)
        return parts.run
