"""F21: a learning rate that is too high from the start."""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate
from trimtab.lab.trainer.train_config import TrainConfig


class RateTooHigh(Intervention):
    """The peak learning rate is too high from the first step on."""

    cause = Cause.LR_TOO_HIGH
    title = "a learning rate that is too high"
    strength_name = "times the correct learning rate"
    from_start = True

    @property
    def strength(self) -> float:
        """From 5 to 60 times the learning rate drawn for the run."""
        return interpolate(5, 60, self.severity)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """The same run with a higher peak."""
        lr = config.optimizer.lr * self.strength
        return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=lr))

    def attach(self, parts: RunParts) -> Run:
        """The settings already contain the fault."""
        self.truth["lr"] = parts.config.optimizer.lr
        return parts.run
