"""Harmless changes that resemble a fault: of the batches, of the schedule, and pauses."""

import dataclasses
import time
from functools import partial

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch
from trimtab.lab.faults.data_faults import MixShift, shorten
from trimtab.lab.model.optimizer import lr_factor
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Base,
    BatchChange,
    Intervention,
    RunParts,
    change_batches,
    scale_lr,
)
from trimtab.lab.trainer.train_config import TrainConfig


class _SmallAtFirst(BatchChange):
    """Batches are smaller until the onset."""

    cause = Cause.BATCH_SIZE_CHANGE
    is_fault = False
    from_start = True
    planned = True

    def covers(self, step: int) -> bool:
        return step < self.onset

    def attach(self, parts: RunParts) -> LabRun:
        self.truth["changes_at"] = self.onset
        return super().attach(parts)


class BatchRamp(_SmallAtFirst):
    """The batch is small until the onset and full-sized from there on: the noise falls."""

    title = "batch-size ramp"
    strength_name = "times more rows"
    strengths = (2, 4)

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
        return shorten(batch, rows=max(1, round(len(batch.tokens) / self.strength)))


class LongerSequences(_SmallAtFirst):
    """Windows are short until the onset and long from there on; more context lowers the loss."""

    title = "sequence-length change"
    strength_name = "times longer"
    strengths = (1.5, 4)

    def change(self, step: int, batch: Batch, parts: RunParts) -> Batch:
        return shorten(batch, length=max(4, round(parts.config.length / self.strength)))


class PlannedMix(MixShift):
    """The same change of data as F04, but announced: the loss level changes as planned."""

    cause = None
    title = "planned change of the data mix"
    is_fault = False
    planned = True


class LongEvaluation(Intervention):
    """At the onset, a long evaluation pauses training."""

    cause = None
    title = "pause for an evaluation"
    strength_name = "evaluation batches"
    strengths = (20, 200)
    is_whole = True
    is_fault = False
    planned = True

    def settings(self, config: TrainConfig) -> TrainConfig:
        return dataclasses.replace(
            config, eval_steps=max(self.onset, 1), eval_batches=int(self.strength)
        )


class RightResume(Intervention):
    """The run is stopped at the onset and resumed correctly, after a pause."""

    cause = None
    title = "correct resume"
    strength_name = "seconds of pause"
    strengths = (0.1, 1.0)
    is_fault = False
    base = Base.RESUME

    def attach(self, parts: RunParts) -> LabRun:
        """Wait for the first batch after the resume, as a loader that fills its buffers does."""
        if parts.first_step != self.onset:
            return parts.run
        first = self.onset * parts.config.accumulate

        def change(step: int, batch: Batch) -> Batch:
            if batch.position == first:
                time.sleep(self.strength)
            return batch

        return change_batches(parts.run, change)


class Cooldown(Intervention):
    """A constant learning rate that decays linearly to 0 from the onset on: the loss drops."""

    cause = None
    title = "learning-rate cooldown"
    strength_name = "of the peak learning rate at the end"
    is_fault = False
    from_start = True
    planned = True

    @property
    def strength(self) -> float:
        return 0.0

    def attach(self, parts: RunParts) -> LabRun:
        """Replace the cosine with a constant rate and a linear decay."""
        self.truth["changes_at"] = self.onset
        config = parts.config
        cosine = partial(lr_factor, warmup=config.warmup, steps=config.steps)

        def factor(step: int) -> float:
            if step < config.warmup:
                return 1.0
            left = min(1.0, (config.steps - step) / (config.steps - self.onset))
            return left / cosine(step)

        scale_lr(parts.run, factor)
        return parts.run


class LateWarmup(Intervention):
    """A long warm-up that ends at the onset: the learning rate stops rising there."""

    cause = None
    title = "end of a long warm-up"
    strength_name = "steps of warm-up"
    is_fault = False
    from_start = True

    @property
    def strength(self) -> float:
        return float(self.onset)

    def settings(self, config: TrainConfig) -> TrainConfig:
        return dataclasses.replace(config, warmup_steps=self.onset)

    def attach(self, parts: RunParts) -> LabRun:
        """Note where the change is; the settings contain it."""
        self.truth["changes_at"] = self.onset
        return parts.run
