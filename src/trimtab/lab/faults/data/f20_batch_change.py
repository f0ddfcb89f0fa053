"""F20: the batch becomes smaller: noisier numbers, and no fault."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_batches


class SmallerBatch(Disturbance):
    """From the onset on only some rows of each batch are left, and nobody has announced it."""

    cause = Cause.BATCH_SIZE_CHANGE
    title = "a smaller batch, unannounced"
    strength_name = "times fewer rows"
    is_fault = False

    @property
    def strength(self) -> float:
        """From a third fewer to a quarter of the rows."""
        return between(1.5, 4, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Cut the batches."""

        def change(step: int, batch: Batch) -> Batch:
            if not self.covers(step):
                return batch
            rows = max(1, round(len(batch.tokens) / self.strength))
            self.truth["rows"] = rows
            return dataclasses.replace(
                batch, tokens=batch.tokens[:rows], targets=batch.targets[:rows]
            )

        return change_batches(parts.run, change)
