"""F11: activations grow until they exceed the range of fp16."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Block
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import current_step
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts, interpolate

_MAX_GROWTH_STEPS = 500
"""Far beyond 65,504 at any strength; a Python float would overflow later."""


class Fp16Overflow(Intervention):
    """The output of the last MLP grows by a factor at every step. Above 65,504 the forward pass
    gives inf, the loss is NaN, and the scaler halves its scale at every step."""

    cause = Cause.FP16_OVERFLOW
    title = "activations that overflow fp16"
    strength_name = "growth of a block's output per step"
    base = Base.FP16

    @property
    def strength(self) -> float:
        """From 5 % per step (250 steps until overflow) to 50 % (30 steps; measured at seed 1)."""
        return interpolate(1.05, 1.5, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Multiply the output of the last block's MLP."""
        run = parts.run

        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            step = current_step(run)
            if not (self.covers(step) and torch.is_grad_enabled()):
                return output
            return output * self.strength ** min(step - self.onset + 1, _MAX_GROWTH_STEPS)

        cast(Block, run.model.blocks[-1]).mlp.register_forward_hook(hook)
        return run
