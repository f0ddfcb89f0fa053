"""Planned changes of batch size, sequence length and data mix."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.faults.data.f04_mix_shift import MixShift
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class BatchRamp(Intervention):
    """The batch is small until the onset and full-sized from there on: the noise falls."""

    cause = Cause.BATCH_SIZE_CHANGE
    clock = Clock.DATA
    title = "batch-size ramp"
    strength_name = "times more rows"
    is_fault = False
    from_start = True
    planned = True

    @property
    def strength(self) -> float:
        """From twice the rows to four times."""
        return interpolate(2, 4, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Truncate the batches before the onset."""
        self.truth["changes_at"] = self.onset

        def change(step: int, batch: Batch) -> Batch:
            if step >= self.onset:
                return batch
            rows = max(1, round(len(batch.tokens) / self.strength))
            return dataclasses.replace(
                batch, tokens=batch.tokens[:rows], targets=batch.targets[:rows]
            )

        return change_batches(parts.run, change)


class LongerSequences(Intervention):
    """Windows are short until the onset and long from there on; more context lowers the loss."""

    cause = Cause.BATCH_SIZE_CHANGE
    clock = Clock.DATA
    title = "sequence-length change"
    strength_name = "times longer"
    is_fault = False
    from_start = True
    planned = True

    @property
    def strength(self) -> float:
        """From 1.5 times as long to four times as long."""
        return interpolate(1.5, 4, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Truncate the windows before the onset."""
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
    """The same change of data as F04, but announced: the loss level changes as planned."""

    cause = None
    title = "planned change of the data mix"
    is_fault = False
    planned = True
