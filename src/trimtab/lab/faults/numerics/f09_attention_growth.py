"""F09: queries and keys grow, and the attention logits with them."""

from typing import cast

import torch

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Block
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step
from trimtab.lab.trainer.intervention import Intervention, RunParts, interpolate


class AttentionGrowth(Intervention):
    """Query and key weights grow by a factor at every step, and logits by its square, until each
    head attends to one token. A high learning rate without QK-norm does the same, more slowly."""

    cause = Cause.ATTENTION_LOGIT_GROWTH
    title = "growing attention logits"
    strength_name = "growth of query and key weights per step"

    @property
    def strength(self) -> float:
        """From 0.2 % per step to 3 %."""
        return interpolate(0.002, 0.03, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Scale the weights up before each step from the onset on."""
        model = parts.run.model
        rows = 2 * model.config.width  # queries and keys; the rows after them are values

        @torch.no_grad()
        def act(step: int) -> None:
            if self.covers(step):
                for block in model.blocks:
                    cast(Block, block).attention.qkv.weight[:rows].mul_(1 + self.strength)

        return before_step(parts.run, act)
