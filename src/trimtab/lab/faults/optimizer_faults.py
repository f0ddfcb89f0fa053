"""Faults in the optimizer, its state and its schedule: F05 to F08, F19, F21, F23, F24."""

import dataclasses
import math
from functools import partial

from trimtab.core.causes import Cause
from trimtab.lab.model.optimizer import lr_factor
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Base,
    Intervention,
    RunParts,
    before_step,
    scale_lr,
)
from trimtab.lab.trainer.run_clock import Clock
from trimtab.lab.trainer.train_config import TrainConfig


class RateJump(Intervention):
    """For some steps the learning rate is multiplied, as by two schedules joined incorrectly."""

    cause = Cause.LR_DISCONTINUITY
    title = "a jump in the learning rate"
    strength_name = "times the planned learning rate"
    strengths = (3, 40)
    """From 3 to 40 times the planned learning rate."""
    heals = True

    @property
    def steps(self) -> int:
        """5 to 40 steps."""
        return int(self.random.integers(5, 41))

    def attach(self, parts: RunParts) -> LabRun:
        """Multiply the learning rate from onset to end."""
        scale_lr(parts.run, lambda step: self.strength if self.covers(step) else 1.0)
        return parts.run


class StateLost(Intervention):
    """After the resume, moments and step counts are missing for a share of the parameters."""

    cause = Cause.OPTIMIZER_STATE_LOST
    clock = Clock.TICK
    title = "optimizer state lost in a resume"
    strength_name = "of the parameters"
    strengths = (0.2, 1.0)
    """From a fifth of the tensors to all of them."""
    base = Base.RESUME

    def attach(self, parts: RunParts) -> LabRun:
        """Delete the state that was just loaded."""
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


class StaleMoment(Intervention):
    """v shrinks as if gradients had been small, and a large beta2 keeps it small: each update is
    divided by far too little."""

    cause = Cause.STALE_SECOND_MOMENT
    title = "a second moment far too small for the gradient"
    strength_name = "times too small"
    strengths = (10, 10_000)
    """From a tenth of the correct value to a ten-thousandth."""

    def attach(self, parts: RunParts) -> LabRun:
        """Shrink v at the onset and raise beta2 from there on."""
        optimizer = parts.run.optimizer

        def act(step: int) -> None:
            if step != self.onset:
                return
            for state in optimizer.state.values():
                state["exp_avg_sq"].div_(self.strength)
            for group in optimizer.param_groups:
                group["betas"] = (group["betas"][0], _SLOW_BETA2)
            self.truth["beta2"] = _SLOW_BETA2

        return before_step(parts.run, act)


class LargeEpsilon(Intervention):
    """Adam's epsilon exceeds the root of v: updates shrink where gradients are small."""

    cause = Cause.EPSILON_REGIME
    title = "epsilon larger than the root of the second moment"
    strength_name = "as epsilon"
    strengths = (1e-4, 1e-1)
    """From 1e-4, about the root of v in a small model, to 1e-1."""

    def attach(self, parts: RunParts) -> LabRun:
        """Set epsilon at the onset."""
        groups = parts.run.optimizer.param_groups

        def act(step: int) -> None:
            if step == self.onset:
                self.truth["epsilon_before"] = groups[0]["eps"]
                for group in groups:
                    group["eps"] = self.strength

        return before_step(parts.run, act)


class Frozen(Intervention):
    """Some parameters stop requiring a gradient. The rest of the model keeps learning."""

    cause = Cause.PARAMETERS_NOT_UPDATING
    title = "parameters that are not updated"
    strength_name = "of the block parameters"
    strengths = (0.1, 1.0)
    """From a tenth of the blocks' tensors to all of them; the embedding keeps learning."""

    def attach(self, parts: RunParts) -> LabRun:
        """Freeze them at the onset."""
        named = list(parts.run.model.blocks.named_parameters())
        count = math.ceil(self.strength * len(named))
        chosen = sorted(self.random.permutation(len(named))[:count].tolist())
        self.truth["parameters"] = [f"blocks.{named[place][0]}" for place in chosen]

        def act(step: int) -> None:
            if step == self.onset:
                for place in chosen:
                    named[place][1].requires_grad_(False)

        return before_step(parts.run, act)


class RateTooHigh(Intervention):
    """The peak learning rate is too high from the first step on."""

    cause = Cause.LR_TOO_HIGH
    title = "a learning rate that is too high"
    strength_name = "times the correct learning rate"
    strengths = (5, 60)
    """From 5 to 60 times the learning rate drawn for the run."""
    from_start = True

    def settings(self, config: TrainConfig) -> TrainConfig:
        """Raise the peak."""
        lr = config.optimizer.lr * self.strength
        return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=lr))

    def attach(self, parts: RunParts) -> LabRun:
        """Note the learning rate; the settings contain the fault."""
        self.truth["lr"] = parts.config.optimizer.lr
        return parts.run


class StrongDecay(Intervention):
    """The decay of all matrices is multiplied; their norms shrink while v and the learning rate are
    normal. A decay of 0 has no visible effect within a small run, so it is not here."""

    cause = Cause.WEIGHT_DECAY
    title = "weight decay that is far too strong"
    strength_name = "times the planned decay"
    strengths = (10, 300)
    """From 10 to 300 times."""

    def attach(self, parts: RunParts) -> LabRun:
        """Multiply the decay at the onset."""
        groups = parts.run.optimizer.param_groups

        def act(step: int) -> None:
            if step == self.onset:
                for group in groups:
                    group["weight_decay"] *= self.strength
                self.truth["weight_decay"] = max(group["weight_decay"] for group in groups)

        return before_step(parts.run, act)


class WrongSchedule(Intervention):
    """From the onset on, the schedule is inverted: the learning rate rises where it should fall."""

    cause = Cause.WRONG_SCHEDULE
    title = "a schedule with the wrong sign"
    strength_name = "times the planned decrease, upwards (log scale)"
    strengths = (0.5, 2.0)
    """From half of the planned decrease, as an increase, to twice."""

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
