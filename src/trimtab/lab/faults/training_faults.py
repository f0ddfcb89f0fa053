"""Faults in what code and settings do to an update.

The optimizer, its state and its schedule: F05 to F08, F19, F21, F23, F24. The numbers of the
forward and backward pass: F09 to F12, F22. Settings that are unstable by nature.
"""

import dataclasses
import math
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output, TransformerBlock
from trimtab.lab.model.optimizer import lr_factor
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Base,
    Intervention,
    OutputChange,
    RunParts,
    StateChange,
    current_step,
    scale_lr,
)
from trimtab.lab.trainer.train_config import TrainConfig


class RateJump(Intervention):
    """For some steps the learning rate is multiplied, as by two schedules joined incorrectly."""

    cause = Cause.LR_DISCONTINUITY
    title = "a jump in the learning rate"
    strength_name = "times the planned learning rate"
    strengths = (3, 40)
    heals = True

    @property
    def steps(self) -> int:
        return int(self.random.integers(5, 41))

    def attach(self, parts: RunParts) -> LabRun:
        scale_lr(parts.run, lambda step: self.strength if self.covers(step) else 1.0)
        return parts.run


class StateLost(Intervention):
    """After the resume, moments and step counts are missing for a share of the parameters."""

    cause = Cause.OPTIMIZER_STATE_LOST
    title = "optimizer state lost in a resume"
    strength_name = "of the parameters"
    strengths = (0.2, 1.0)
    base = Base.RESUME

    def attach(self, parts: RunParts) -> LabRun:
        if parts.first_step != self.onset:
            return parts.run
        named = list(parts.run.model.named_parameters())
        count = math.ceil(self.strength * len(named))
        chosen = sorted(self.random.permutation(len(named))[:count].tolist())
        for name, parameter in (named[place] for place in chosen):
            self.truth.setdefault("parameters", []).append(name)
            del parts.run.optimizer.state[parameter]
        return parts.run


_SLOW_BETA2 = 0.9999
"""Averages over 10,000 steps: longer than any run of the lab."""


class StaleMoment(StateChange):
    """v shrinks as if gradients had been small, and a large beta2 keeps it small: each update is
    divided by far too little."""

    cause = Cause.STALE_SECOND_MOMENT
    title = "a second moment far too small for the gradient"
    strength_name = "times too small"
    strengths = (10, 10_000)

    def act(self, parts: RunParts) -> None:
        for state in parts.run.optimizer.state.values():
            state["exp_avg_sq"].div_(self.strength)
        for group in parts.run.optimizer.param_groups:
            group["betas"] = (group["betas"][0], _SLOW_BETA2)
        self.truth["beta2"] = _SLOW_BETA2


class LargeEpsilon(StateChange):
    """Adam's epsilon exceeds the root of v: updates shrink where gradients are small."""

    cause = Cause.EPSILON_REGIME
    title = "epsilon larger than the root of the second moment"
    strength_name = "as epsilon"
    strengths = (1e-4, 1e-1)
    """From 1e-4, about the root of v in a small model, to 1e-1."""

    def act(self, parts: RunParts) -> None:
        groups = parts.run.optimizer.param_groups
        self.truth["epsilon_before"] = groups[0]["eps"]
        for group in groups:
            group["eps"] = self.strength


class Frozen(StateChange):
    """Some parameters stop requiring a gradient. The rest of the model keeps learning."""

    cause = Cause.PARAMETERS_NOT_UPDATING
    title = "parameters that are not updated"
    strength_name = "of the block parameters"
    strengths = (0.1, 1.0)
    """From a tenth of the blocks' tensors to all of them; the embedding keeps learning."""

    def act(self, parts: RunParts) -> None:
        named = list(parts.run.model.blocks.named_parameters())
        count = math.ceil(self.strength * len(named))
        for place in sorted(self.random.permutation(len(named))[:count].tolist()):
            name, parameter = named[place]
            self.truth.setdefault("parameters", []).append(f"blocks.{name}")
            parameter.requires_grad_(False)


class RateTooHigh(Intervention):
    """The peak learning rate is too high from the first step on."""

    cause = Cause.LR_TOO_HIGH
    title = "a learning rate that is too high"
    strength_name = "times the correct learning rate"
    strengths = (5, 60)
    from_start = True

    def settings(self, config: TrainConfig) -> TrainConfig:
        return _with_lr(config, config.optimizer.lr * self.strength)

    def attach(self, parts: RunParts) -> LabRun:
        """Note the learning rate; the settings contain the fault."""
        self.truth["lr"] = parts.config.optimizer.lr
        return parts.run


class StrongDecay(StateChange):
    """The decay of all matrices is multiplied; their norms shrink while v and the learning rate are
    normal. A decay of 0 has no visible effect within a small run, so it is not here."""

    cause = Cause.WEIGHT_DECAY
    title = "weight decay that is far too strong"
    strength_name = "times the planned decay"
    strengths = (10, 300)

    def act(self, parts: RunParts) -> None:
        groups = parts.run.optimizer.param_groups
        for group in groups:
            group["weight_decay"] *= self.strength
        self.truth["weight_decay"] = max(group["weight_decay"] for group in groups)


class WrongSchedule(Intervention):
    """From the onset on, the schedule is inverted: the learning rate rises where it should fall."""

    cause = Cause.WRONG_SCHEDULE
    title = "a schedule with the wrong sign"
    strength_name = "times the planned decrease, upwards (log scale)"
    strengths = (0.5, 2.0)

    def attach(self, parts: RunParts) -> LabRun:
        """Mirror the schedule at the last learning rate before the onset."""
        config = parts.config
        last = max(self.onset - 1, 0)
        planned = partial(lr_factor, warmup=config.warmup, steps=config.steps)

        def factor(step: int) -> float:
            if not self.covers(step):
                return 1.0
            decrease = planned(last) / planned(step)
            return float(decrease ** (1 + self.strength))

        scale_lr(parts.run, factor)
        return parts.run


# The numbers of the forward and backward pass


class AttentionGrowth(StateChange):
    """Query and key weights grow by a factor at every step, and logits by its square, until each
    head attends to one token. A high learning rate without QK-norm does the same, more slowly."""

    cause = Cause.ATTENTION_LOGIT_GROWTH
    title = "growing attention logits"
    strength_name = "growth of query and key weights per step"
    strengths = (0.002, 0.03)
    is_repeated = True

    def act(self, parts: RunParts) -> None:
        rows = 2 * parts.run.model.config.width  # queries and keys; the rows after them are values
        for block in parts.run.model.blocks:
            cast(TransformerBlock, block).attention.qkv.weight[:rows].mul_(1 + self.strength)


class OutputDrift(StateChange):
    """The gain of the last norm grows at every step: the model becomes overconfident."""

    cause = Cause.OUTPUT_LOGIT_DRIFT
    title = "growing output logits"
    strength_name = "growth of the last norm's gain per step"
    strengths = (0.003, 0.02)
    is_repeated = True

    def act(self, parts: RunParts) -> None:
        parts.run.model.norm.weight.mul_(1 + self.strength)


_MAX_GROWTH_STEPS = 500
"""Far beyond 65,504 at any strength; a Python float would overflow later."""


class Fp16Overflow(Intervention):
    """The output of the last MLP grows by a factor at every step. Above 65,504 the forward pass
    gives inf, the loss is NaN, and the scaler halves its scale at every step."""

    cause = Cause.FP16_OVERFLOW
    title = "activations that overflow fp16"
    strength_name = "growth of a block's output per step"
    strengths = (1.05, 1.5)
    """From 5 % per step (250 steps until overflow) to 50 % (30 steps; measured at seed 1)."""
    base = Base.FP16

    def attach(self, parts: RunParts) -> LabRun:
        run = parts.run

        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            step = current_step(run)
            if not (self.covers(step) and torch.is_grad_enabled()):
                return output
            return output * self.strength ** min(step - self.onset + 1, _MAX_GROWTH_STEPS)

        cast(TransformerBlock, run.model.blocks[-1]).mlp.register_forward_hook(hook)
        return run


class LogicNan(OutputChange):
    """A hand-written masked mean gets a batch with an empty mask: the loss and every gradient are
    NaN. (torch's own cross-entropy gives a NaN loss and gradients of 0.)"""

    cause = Cause.LOGIC_NAN
    by_data = True
    title = "a batch without targets"
    strength_name = "batches"
    strengths = (1, 8)
    """From a single batch to 8; one is enough to destroy an unprotected run."""

    @property
    def steps(self) -> int:
        return round(self.strength)

    def change(self, step: int, output: Output, parts: RunParts) -> Output:
        """Divide the loss by a target count of 0."""
        accumulate = parts.config.accumulate
        hit = range(self.onset * accumulate, (step + 1) * accumulate)
        self.truth["data_positions"] = list(hit)
        targets = output.loss.new_zeros(())
        nan_loss = output.loss * targets / targets
        return output._replace(loss=nan_loss, cross_entropy=nan_loss)


class LossReduction(OutputChange):
    """The training loss is a multiple of the mean. In half of the runs the logged loss is too; in
    the others only the gradient shows it."""

    cause = Cause.LOSS_REDUCTION_BUG
    title = "a loss summed instead of averaged"
    strength_name = "times the mean"
    strengths = (2, 32)
    """As for that many micro-batches summed instead of averaged."""
    is_whole = True

    def change(self, step: int, output: Output, parts: RunParts) -> Output:
        is_logged = bool(self.random.integers(2))
        self.truth["logged_loss_too"] = is_logged
        logged = output.cross_entropy * (self.strength if is_logged else 1.0)
        return output._replace(loss=output.loss * self.strength, cross_entropy=logged)


# Settings at which a small model becomes unstable, or never learns, without an injected fault
#
# Some instabilities of large models do not occur in small ones. Output logits do not drift without
# z-loss (measured over 2,000 steps at 0.15M, untied, with a learning rate of 5e-2: the same loss
# with and without it), so there is no such setting here. Pre-norm models on shuffled text do not
# spike in fp32 either: they lose quality silently, and in fp16 they overflow.


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
    strengths = (8, 12)
    is_whole = True

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
