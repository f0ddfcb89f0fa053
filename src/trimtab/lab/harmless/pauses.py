"""Interruptions that leave no trace in the weights."""

import dataclasses
import time

from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Base, Disturbance, Parts, between
from trimtab.lab.trainer.touch import before_step
from trimtab.lab.trainer.train_config import TrainConfig


class LongEvaluation(Disturbance):
    """At the onset an evaluation takes its time; no step is made meanwhile."""

    cause = None
    title = "evaluation pause"
    strength_name = "batches of the evaluation"
    is_fault = False
    planned = True

    @property
    def strength(self) -> float:
        """From 20 batches to 200."""
        return float(round(between(20, 200, self.severity)))

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Evaluate at the onset, on more batches."""
        return dataclasses.replace(
            config, eval_steps=max(self.onset, 1), eval_batches=int(self.strength)
        )

    def attach(self, parts: Parts) -> Run:
        """The settings have done it."""
        return parts.run


class RightResume(Disturbance):
    """The run is stopped at the onset and resumed as it should be, after some time."""

    cause = None
    title = "right resume"
    strength_name = "seconds of pause"
    is_fault = False
    base = Base.RESUME

    @property
    def strength(self) -> float:
        """Up to a second."""
        return between(0.1, 1.0, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Wait before the first step after the resume."""
        if parts.first_step != self.onset:
            return parts.run
        return before_step(
            parts.run, lambda step: time.sleep(self.strength) if step == self.onset else None
        )
