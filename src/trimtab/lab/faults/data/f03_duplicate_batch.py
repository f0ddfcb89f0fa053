"""F03: the loader serves the same batch again and again."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_batches


class DuplicateBatch(Disturbance):
    """The batch before the onset comes again and again; the loss falls, and nothing is learned."""

    cause = Cause.DUPLICATE_BATCH
    title = "the same batch over and over"
    strength_name = "steps"
    heals = True

    @property
    def steps(self) -> int:
        """All repetitions; the first occurrence is a batch like any other."""
        return round(self.strength)

    @property
    def strength(self) -> float:
        """From 4 steps, when momentum has just filled with it, to 80."""
        return between(4, 80, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Keep the batch before the onset and serve it until the end."""
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
