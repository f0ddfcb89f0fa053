"""Faults in the numbers of the forward and backward pass: F09 to F12, F22."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Output, TransformerBlock
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Base,
    Intervention,
    RunParts,
    before_step,
    change_output,
    current_step,
    interpolate,
)
from trimtab.lab.trainer.run_clock import Clock


class AttentionGrowth(Intervention):
    """Query and key weights grow by a factor at every step, and logits by its square, until each
    head attends to one token. A high learning rate without QK-norm does the same, more slowly."""

    cause = Cause.ATTENTION_LOGIT_GROWTH
    title = "growing attention logits"
    strength_name = "growth of query and key weights per step"
    strengths = (0.002, 0.03)
    """From 0.2 % per step to 3 %."""

    def attach(self, parts: RunParts) -> LabRun:
        """Scale the weights up before each step from the onset on."""
        model = parts.run.model
        rows = 2 * model.config.width  # queries and keys; the rows after them are values

        @torch.no_grad()
        def act(step: int) -> None:
            if self.covers(step):
                for block in model.blocks:
                    cast(TransformerBlock, block).attention.qkv.weight[:rows].mul_(
                        1 + self.strength
                    )

        return before_step(parts.run, act)


class OutputDrift(Intervention):
    """The gain of the last norm grows at every step: the model becomes overconfident."""

    cause = Cause.OUTPUT_LOGIT_DRIFT
    title = "growing output logits"
    strength_name = "growth of the last norm's gain per step"
    strengths = (0.003, 0.02)
    """From 0.3 % per step to 2 %."""

    def attach(self, parts: RunParts) -> LabRun:
        """Scale the gain up before each step from the onset on."""
        gain = parts.run.model.norm.weight

        @torch.no_grad()
        def act(step: int) -> None:
            if self.covers(step):
                gain.mul_(1 + self.strength)

        return before_step(parts.run, act)


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
        """Multiply the output of the last block's MLP."""
        run = parts.run

        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            step = current_step(run)
            if not (self.covers(step) and torch.is_grad_enabled()):
                return output
            return output * self.strength ** min(step - self.onset + 1, _MAX_GROWTH_STEPS)

        cast(TransformerBlock, run.model.blocks[-1]).mlp.register_forward_hook(hook)
        return run


class LogicNan(Intervention):
    """A hand-written masked mean gets a batch with an empty mask: the loss and every gradient are
    NaN. (torch's own cross-entropy gives a NaN loss and gradients of 0.)"""

    cause = Cause.LOGIC_NAN
    clock = Clock.DATA
    title = "a batch without targets"
    strength_name = "batches"
    strengths = (1, 8)
    """From a single batch to 8; one is enough to destroy an unprotected run."""

    @property
    def steps(self) -> int:
        """The number of batches."""
        return round(self.strength)

    def attach(self, parts: RunParts) -> LabRun:
        """From onset to end, divide the loss by a target count of 0."""
        accumulate = parts.config.accumulate

        def change(step: int, output: Output) -> Output:
            if not self.covers(step):
                return output
            hit = range(self.onset * accumulate, (step + 1) * accumulate)
            self.truth["data_positions"] = list(hit)
            targets = output.loss.new_zeros(())
            nan_loss = output.loss * targets / targets
            return output._replace(loss=nan_loss, cross_entropy=nan_loss)

        change_output(parts.run, parts.forward, change)
        return parts.run


class LossReduction(Intervention):
    """The training loss is a multiple of the mean. In half of the runs the logged loss is too; in
    the others only the gradient shows it."""

    cause = Cause.LOSS_REDUCTION_BUG
    title = "a loss summed instead of averaged"
    strength_name = "times the mean"

    @property
    def strength(self) -> float:
        """From 2 to 32, as for that many micro-batches summed instead of averaged."""
        return float(round(interpolate(2, 32, self.severity)))

    def attach(self, parts: RunParts) -> LabRun:
        """Multiply the loss from the onset on."""
        is_logged = bool(self.random.integers(2))
        self.truth["logged_loss_too"] = is_logged

        def change(step: int, output: Output) -> Output:
            if not self.covers(step):
                return output
            logged = output.cross_entropy * (self.strength if is_logged else 1.0)
            return output._replace(loss=output.loss * self.strength, cross_entropy=logged)

        change_output(parts.run, parts.forward, change)
        return parts.run
