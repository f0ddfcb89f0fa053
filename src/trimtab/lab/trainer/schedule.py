"""The learning rate: a straight warm-up, then half a cosine down to a tenth."""

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from trimtab.lab.trainer.train_config import TrainConfig

_FLOOR = 0.1
"""Where the cosine ends, as a share of the peak. Source: GPT-3, Llama."""


def lr_factor(step: int, *, warmup: int, steps: int) -> float:
    """The learning rate of a step as a share of the peak; steps count from 0."""
    if step < warmup:
        # From step 0 on: a first step of rate 0 would be one that was paid for and not made.
        return (step + 1) / warmup
    # The scheduler asks once more behind the last step, for a rate that nobody uses.
    progress = min((step - warmup) / max(steps - 1 - warmup, 1), 1.0)
    return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * progress))


def make_schedule(optimizer: Optimizer, config: TrainConfig) -> LambdaLR:
    """Scale the learning rate of every group alike; they may differ under muP."""
    return LambdaLR(optimizer, partial(lr_factor, warmup=config.warmup, steps=config.steps))
