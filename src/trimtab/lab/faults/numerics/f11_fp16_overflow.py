"""F11: activations grow until they leave the range of fp16."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Block
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Base, Disturbance, Parts, between
from trimtab.lab.trainer.touch import current_step

_MOST_STEPS = 500
"""Of growth; long past 65,504 at any strength, and a float's own range ends some day too."""


class Fp16Overflow(Disturbance):
    """What the last MLP adds to the residual stream grows by a factor at every step. Past 65,504
    the forward pass is inf, the loss NaN, and the scaler halves its scale for ever."""

    cause = Cause.FP16_OVERFLOW
    title = "activations that outgrow fp16"
    strength_name = "growth of a block's output per step"
    base = Base.FP16

    @property
    def strength(self) -> float:
        """From 5 % a step (250 steps until overflow) to half (30 steps; measured at seed 1)."""
        return between(1.05, 1.5, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Multiply the output of the last block's MLP."""
        run = parts.run

        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            step = current_step(run)
            if not (self.covers(step) and torch.is_grad_enabled()):
                return output
            return output * self.strength ** min(step - self.onset + 1, _MOST_STEPS)

        cast(Block, run.model.blocks[-1]).mlp.register_forward_hook(hook)
        return run
