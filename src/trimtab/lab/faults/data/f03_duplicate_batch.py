"""F03: the loader returns the same batch repeatedly."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class DuplicateBatch(Intervention):
    """The batch before the onset is repeated; the loss falls, but the model learns nothing."""

    cause = Cause.DUPLICATE_BATCH
    clock = Clock.DATA
    title = "the same batch repeated"
    strength_name = "steps"
    heals = True

    @property
    def steps(self) -> int:
        """The repetitions, without the first occurrence."""
        return round(self.strength)

    @property
    def strength(self) -> float:
        """From 4 steps, when momentum has just adapted to it, to 80."""
        return interpolate(4, 80, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Keep the batch before the onset and return it until the end."""
        kept: list[Batch] = []

        def change(step: int, batch: Batch) -> Batch:
            if step == max(self.onset - 1, 0):
                kept.append(batch)
                self.truth["data_positions"] = [one.position for one in kept]
            if not self.covers(step):
                return batch
            same = kept[batch.position % parts.config.accumulate]
            return dataclasses.replace(batch, tokens=same.tokens, targets=same.targets)

        return change_batches(parts.run, change)
