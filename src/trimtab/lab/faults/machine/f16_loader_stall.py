"""F16: the data loader stalls."""

import time

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock

_EVERY = 5


class LoaderStall(Intervention):
    """For 20 steps, every fifth batch is late. The trained numbers do not change."""

    cause = Cause.LOADER_STALL
    clock = Clock.DATA
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

        accumulate = parts.config.accumulate

        def change(step: int, batch: Batch) -> Batch:
            is_first = batch.position % accumulate == 0
            if is_first and self.covers(step) and (step - self.onset) % _EVERY == 0:
                self.truth["stalled_steps"].append(step)
                time.sleep(self.strength)
            return batch

        return change_batches(parts.run, change)
