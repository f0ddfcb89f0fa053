"""F24: a learning rate that rises where it should fall."""

from functools import partial

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.schedule import lr_factor
from trimtab.lab.trainer.touch import scale_rate


class WrongSchedule(Disturbance):
    """From the onset on the cosine is upside down: the rate rises by what it should have fallen."""

    cause = Cause.WRONG_SCHEDULE
    title = "a schedule with its sign wrong"
    strength_name = "power of the planned fall by which the rate rises"

    @property
    def strength(self) -> float:
        """From half the planned fall, upwards, to twice."""
        return between(0.5, 2.0, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Turn the plan over at the last rate before the onset."""
        config = parts.config
        last = max(self.onset - 1, 0)
        planned = partial(lr_factor, warmup=config.warmup, steps=config.steps)

        def factor(step: int) -> float:
            if not self.covers(step):
                return 1.0
            fall = planned(last) / planned(step)
            return float(fall ** (1 + self.strength))

        scale_rate(parts.run, factor)
        return parts.run
