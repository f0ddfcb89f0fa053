"""F21: a learning rate that was never right."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.train_config import TrainConfig


class RateTooHigh(Disturbance):
    """The peak rate is too high from the first step on."""

    cause = Cause.LR_TOO_HIGH
    title = "a learning rate that is too high"
    strength_name = "times the right rate"
    from_start = True

    @property
    def strength(self) -> float:
        """From 5 to 60 times the rate that was drawn for the run."""
        return between(5, 60, self.severity)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """The same run with a higher peak."""
        lr = config.optimizer.lr * self.strength
        return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=lr))

    def attach(self, parts: Parts) -> Run:
        """The settings have done it."""
        self.truth["lr"] = parts.config.optimizer.lr
        return parts.run
