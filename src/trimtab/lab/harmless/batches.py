"""Changes of the batch that somebody has planned."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.faults.data.f04_mix_shift import MixShift
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import change_batches


class BatchRamp(Disturbance):
    """The batch is small until the onset and whole from there on: the noise falls."""

    cause = Cause.BATCH_SIZE_CHANGE
    title = "batch-size ramp"
    strength_name = "times more rows"
    is_fault = False
    from_start = True
    planned = True

    @property
    def strength(self) -> float:
        """From twice the rows to four times."""
        return between(2, 4, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Cut the batches before the onset."""
        self.truth["changes_at"] = self.onset

        def change(step: int, batch: Batch) -> Batch:
            if step >= self.onset:
                return batch
            rows = max(1, round(len(batch.tokens) / self.strength))
            return dataclasses.replace(
                batch, tokens=batch.tokens[:rows], targets=batch.targets[:rows]
            )

        return change_batches(parts.run, change)


class LongerSequences(Disturbance):
    """Windows are short until the onset and long from there on; with more context loss falls."""

    cause = Cause.BATCH_SIZE_CHANGE
    title = "sequence-length change"
    strength_name = "times longer"
    is_fault = False
    from_start = True
    planned = True

    @property
    def strength(self) -> float:
        """From half as long again to four times as long."""
        return between(1.5, 4, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Cut the windows before the onset."""
        self.truth["changes_at"] = self.onset
        short = max(4, round(parts.config.length / self.strength))

        def change(step: int, batch: Batch) -> Batch:
            if step >= self.onset:
                return batch
            return dataclasses.replace(
                batch, tokens=batch.tokens[:, :short], targets=batch.targets[:, :short]
            )

        return change_batches(parts.run, change)


class PlannedMix(MixShift):
    """The same change of data as F04, announced: the level moves because it is meant to."""

    cause = None
    title = "planned data-mix switch"
    is_fault = False
    planned = True
