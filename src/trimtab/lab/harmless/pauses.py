"""Interruptions that do not change the weights."""

import dataclasses
import time

from trimtab.lab.corpus.data import Batch
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import change_batches
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts, interpolate
from trimtab.lab.trainer.train_config import TrainConfig


class LongEvaluation(Intervention):
    """At the onset, a long evaluation pauses training."""

    cause = None
    title = "pause for an evaluation"
    strength_name = "evaluation batches"
    is_fault = False
    planned = True

    @property
    def strength(self) -> float:
        """From 20 batches to 200."""
        return float(round(interpolate(20, 200, self.severity)))

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Evaluate at the onset, on more batches."""
        return dataclasses.replace(
            config, eval_steps=max(self.onset, 1), eval_batches=int(self.strength)
        )

    def attach(self, parts: RunParts) -> Run:
        """The settings already contain the change."""
        return parts.run


class RightResume(Intervention):
    """The run is stopped at the onset and resumed correctly, after a pause."""

    cause = None
    title = "correct resume"
    strength_name = "seconds of pause"
    is_fault = False
    base = Base.RESUME

    @property
    def strength(self) -> float:
        """Up to a second."""
        return interpolate(0.1, 1.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Wait for the first batch after the resume, as a loader that fills its buffers does."""
        if parts.first_step != self.onset:
            return parts.run
        first = self.onset * parts.config.accumulate

        def change(step: int, batch: Batch) -> Batch:
            if batch.position == first:
                time.sleep(self.strength)
            return batch

        return change_batches(parts.run, change)
