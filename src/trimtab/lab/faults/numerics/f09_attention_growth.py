"""F09: queries and keys grow, and with them the logits of attention."""

from typing import cast

import torch

from trimtab.core.causes import Cause
from trimtab.lab.model.gpt import Block
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Disturbance, Parts, between
from trimtab.lab.trainer.touch import before_step


class AttentionGrowth(Disturbance):
    """Query and key weights grow by a share at every step; logits grow by its square, until
    attention looks at one token only. It is what a high rate does without QK-norm, made faster."""

    cause = Cause.ATTENTION_LOGIT_GROWTH
    title = "attention logits that grow"
    strength_name = "growth of query and key weights per step"

    @property
    def strength(self) -> float:
        """From 0.2 % a step to 3 %."""
        return between(0.002, 0.03, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Grow the weights in front of each step from the onset on."""
        model = parts.run.model
        rows = 2 * model.config.width  # of queries and keys; values lie behind them

        @torch.no_grad()
        def act(step: int) -> None:
            if self.covers(step):
                for block in model.blocks:
                    cast(Block, block).attention.qkv.weight[:rows].mul_(1 + self.strength)

        return before_step(parts.run, act)
