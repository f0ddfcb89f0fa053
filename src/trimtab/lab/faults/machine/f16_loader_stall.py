"""F16: the loader makes the run wait."""

import time

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import before_step

_EVERY = 5


class LoaderStall(Disturbance):
    """Every fifth batch comes late for a while. The numbers of the run do not change at all."""

    cause = Cause.LOADER_STALL
    title = "batches that come late"
    strength_name = "seconds"
    heals = True

    @property
    def steps(self) -> int:
        """Four stalls."""
        return 4 * _EVERY

    @property
    def strength(self) -> float:
        """From a quarter of a second, some ten steps of a small model, to two seconds."""
        return between(0.25, 2.0, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Sleep in the loader."""
        self.truth["stalled_steps"] = []

        def act(step: int) -> None:
            if self.covers(step) and (step - self.onset) % _EVERY == 0:
                self.truth["stalled_steps"].append(step)
                time.sleep(self.strength)

        return before_step(parts.run, act)
