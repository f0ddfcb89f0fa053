"""Changes of the learning rate that somebody has planned."""

import dataclasses
from functools import partial

from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts
from trimtab.lab.trainer.schedule import lr_factor
from trimtab.lab.trainer.touch import scale_rate
from trimtab.lab.trainer.train_config import TrainConfig


class Cooldown(Disturbance):
    """A constant rate that falls in a straight line to 0 from the onset on: the loss drops."""

    cause = None
    title = "learning-rate cooldown"
    strength_name = "share of the peak at the end"
    is_fault = False
    from_start = True
    planned = True

    @property
    def strength(self) -> float:
        """Down to nothing."""
        return 0.0

    def attach(self, parts: Parts) -> Run:
        """Replace the cosine by a flat rate and a ramp."""
        self.truth["changes_at"] = self.onset
        config = parts.config
        cosine = partial(lr_factor, warmup=config.warmup, steps=config.steps)

        def factor(step: int) -> float:
            if step < config.warmup:
                return 1.0
            left = min(1.0, (config.steps - step) / (config.steps - self.onset))
            return left / cosine(step)

        scale_rate(parts.run, factor)
        return parts.run


class LateWarmup(Disturbance):
    """A warm-up that ends at the onset, late in the run: the rate stops rising there."""

    cause = None
    title = "end of a long warm-up"
    strength_name = "steps of warm-up"
    is_fault = False
    from_start = True

    @property
    def strength(self) -> float:
        """All steps up to the onset."""
        return float(self.onset)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """The same run with a longer warm-up."""
        return dataclasses.replace(config, warmup_steps=self.onset)

    def attach(self, parts: Parts) -> Run:
        """The settings have done it."""
        self.truth["changes_at"] = self.onset
        return parts.run
