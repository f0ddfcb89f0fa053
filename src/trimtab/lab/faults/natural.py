"""Settings at which a small model becomes unstable, or never learns, all by itself.

What large models do and small ones do not: output logits do not drift here without z-loss
(measured over 2,000 steps at 0.15M, untied, with a rate of 5e-2: the same loss with and without
it), so there is no such setting. Pre-norm models on shuffled text do not spike in fp32 either; what
they do is to lose quality in silence, and in fp16 to overflow.
"""

import dataclasses

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Base, Disturbance, Parts, between
from trimtab.lab.trainer.train_config import TrainConfig


class _Natural(Disturbance):
    """A setting, and nothing else: whatever happens, happens by itself."""

    from_start = True

    def attach(self, parts: Parts) -> Run:
        """Nothing is touched."""
        return parts.run


class AttentionCollapse(_Natural):
    """A high rate without QK-norm: attention logits grow until each head looks at one token."""

    cause = Cause.ATTENTION_LOGIT_GROWTH
    title = "high rate without QK-norm"
    strength_name = "learning rate"

    @property
    def strength(self) -> float:
        """From 1e-2, where logits pass 100, to 1e-1, where they pass 30,000."""
        return between(1e-2, 1e-1, self.severity)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Another rate; the models of the suite have no QK-norm."""
        return _with_rate(config, self.strength)


class PostNorm(_Natural):
    """Norms behind the residual sums, deep and with no warm-up: it never learns to look back."""

    cause = Cause.LR_TOO_HIGH
    title = "post-norm at depth"
    strength_name = "layers"

    @property
    def strength(self) -> float:
        """From 8 layers to 12."""
        return float(round(between(8, 12, self.severity)))

    def settings(self, config: TrainConfig) -> TrainConfig:
        """A deep and narrow model."""
        model = dataclasses.replace(config.model, post_norm=True, layers=int(self.strength))
        return dataclasses.replace(config, model=model, warmup_steps=1)


class WideInit(_Natural):
    """Initial weights far too large: the first loss is far above that of guessing."""

    cause = Cause.LR_TOO_HIGH
    title = "too wide an init"
    strength_name = "deviation of the initial weights"

    @property
    def strength(self) -> float:
        """From 0.2 to 1; right is 0.02."""
        return between(0.2, 1.0, self.severity)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Another init."""
        model = dataclasses.replace(config.model, init_std=self.strength)
        return dataclasses.replace(config, model=model)


class NoWarmup(_Natural):
    """The full rate from the first step, while the second moment is still unknown."""

    cause = Cause.LR_TOO_HIGH
    title = "no warm-up"
    strength_name = "learning rate"

    @property
    def strength(self) -> float:
        """From 1e-2 to 5e-2."""
        return between(1e-2, 5e-2, self.severity)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """The peak at once."""
        return dataclasses.replace(_with_rate(config, self.strength), warmup_steps=0)


class Fp16Spiral(_Natural):
    """fp16 at a high rate: activations grow by themselves until they overflow."""

    cause = Cause.FP16_OVERFLOW
    title = "high rate in fp16"
    strength_name = "learning rate"
    base = Base.FP16

    @property
    def strength(self) -> float:
        """From 0.2 to 0.3. At 0.3 the loss is lost within 90 steps (5 seeds measured), at 0.2 it
        took 126, and 0.09 never got there in 600: the rate falls before activations are large."""
        return between(0.2, 0.3, self.severity)

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Another rate."""
        return _with_rate(config, self.strength)


def _with_rate(config: TrainConfig, lr: float) -> TrainConfig:
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=lr))
