"""Settings at which a small model becomes unstable, or never learns, without an injected fault.

Some instabilities of large models do not occur in small ones. Output logits do not drift without
z-loss (measured over 2,000 steps at 0.15M, untied, with a learning rate of 5e-2: the same loss with
and without it), so there is no such setting here. Pre-norm models on shuffled text do not spike in
fp32 either: they lose quality silently, and in fp16 they overflow.
"""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.trainer.intervention import Base, Intervention, interpolate
from trimtab.lab.trainer.train_config import TrainConfig


class _Natural(Intervention):
    """Changes a setting and nothing else."""

    from_start = True


class AttentionCollapse(_Natural):
    """A high learning rate without QK-norm: attention logits grow until each head attends to one
    token."""

    cause = Cause.ATTENTION_LOGIT_GROWTH
    title = "high learning rate without QK-norm"
    strength_name = "as learning rate"
    strengths = (1e-2, 1e-1)
    """From 1e-2, where logits exceed 100, to 1e-1, where they exceed 30,000."""

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Raise the learning rate; the models of the suite have no QK-norm."""
        return _with_lr(config, self.strength)


class PostNorm(_Natural):
    """Norms after the residual sums in a deep model without warm-up: attention never learns."""

    cause = Cause.LR_TOO_HIGH
    title = "post-norm at depth"
    strength_name = "layers"

    @property
    def strength(self) -> float:
        return float(round(interpolate(8, 12, self.severity)))

    def settings(self, config: TrainConfig) -> TrainConfig:
        model = dataclasses.replace(config.model, post_norm=True, layers=int(self.strength))
        return dataclasses.replace(config, model=model, warmup_steps=1)


class WideInit(_Natural):
    """Initial weights far too large: the first loss is far above that of a uniform guess."""

    cause = Cause.LR_TOO_HIGH
    title = "initial weights far too large"
    strength_name = "as standard deviation of the initial weights"
    strengths = (0.2, 1.0)
    """From 0.2 to 1; the usual value is 0.02."""

    def settings(self, config: TrainConfig) -> TrainConfig:
        model = dataclasses.replace(config.model, init_std=self.strength)
        return dataclasses.replace(config, model=model)


class NoWarmup(_Natural):
    """The peak learning rate from the first step, before the second moment is known."""

    cause = Cause.LR_TOO_HIGH
    title = "no warm-up"
    strength_name = "as learning rate"
    strengths = (1e-2, 5e-2)

    def settings(self, config: TrainConfig) -> TrainConfig:
        return dataclasses.replace(_with_lr(config, self.strength), warmup_steps=0)


class Fp16Spiral(_Natural):
    """fp16 at a high learning rate: activations grow until they overflow."""

    cause = Cause.FP16_OVERFLOW
    title = "high learning rate in fp16"
    strength_name = "as learning rate"
    strengths = (0.2, 0.3)
    """From 0.2 to 0.3. At 0.3 the loss is non-finite within 90 steps (5 seeds measured), at 0.2
    after 126, at 0.09 not within 600: the schedule lowers the rate before activations are
    large."""
    base = Base.FP16

    def settings(self, config: TrainConfig) -> TrainConfig:
        return _with_lr(config, self.strength)


def _with_lr(config: TrainConfig, lr: float) -> TrainConfig:
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=lr))
