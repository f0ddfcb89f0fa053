"""Planned changes of the learning rate."""

import dataclasses
from functools import partial

from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import scale_lr
from trimtab.lab.trainer.intervention import Intervention, RunParts
from trimtab.lab.trainer.schedule import lr_factor
from trimtab.lab.trainer.train_config import TrainConfig


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
        """Always 0."""
        return 0.0

    def attach(self, parts: RunParts) -> Run:
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
        """The steps up to the onset."""
        return float(self.onset)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """The same run with a longer warm-up."""
        return dataclasses.replace(config, warmup_steps=self.onset)

    def attach(self, parts: RunParts) -> Run:
        """The settings already contain the change."""
        self.truth["changes_at"] = self.onset
        return parts.run
