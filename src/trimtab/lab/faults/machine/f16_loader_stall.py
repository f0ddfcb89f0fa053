"""F16: the data loader stalls."""

import time

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate

_EVERY = 5


class LoaderStall(Intervention):
    """For 20 steps, every fifth batch is late. The trained numbers do not change."""

    cause = Cause.LOADER_STALL
    title = "batches that arrive late"
    strength_name = "seconds"
    heals = True

    @property
    def steps(self) -> int:
        """Four stalls."""
        return 4 * _EVERY

    @property
    def strength(self) -> float:
        """From a quarter of a second, about ten steps of a small model, to two seconds."""
        return interpolate(0.25, 2.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Sleep in the loader."""
        self.truth["stalled_steps"] = []

        def act(step: int) -> None:
            if self.covers(step) and (step - self.onset) % _EVERY == 0:
                self.truth["stalled_steps"].append(step)
                time.sleep(self.strength)

        return before_step(parts.run, act)
