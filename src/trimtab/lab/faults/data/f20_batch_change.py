"""F20: the batch becomes smaller: noisier numbers, but not a fault."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class SmallerBatch(Intervention):
    """From the onset on, each batch has fewer rows, without an announcement."""

    cause = Cause.BATCH_SIZE_CHANGE
    clock = Clock.DATA
    title = "a smaller batch, unannounced"
    strength_name = "times fewer rows"
    is_fault = False

    @property
    def strength(self) -> float:
        """From a third fewer rows to a quarter of them."""
        return interpolate(1.5, 4, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Truncate the batches."""

        def change(step: int, batch: Batch) -> Batch:
            if not self.covers(step):
                return batch
            rows = max(1, round(len(batch.tokens) / self.strength))
            self.truth["rows"] = rows
            return dataclasses.replace(
                batch, tokens=batch.tokens[:rows], targets=batch.targets[:rows]
            )

        return change_batches(parts.run, change)
