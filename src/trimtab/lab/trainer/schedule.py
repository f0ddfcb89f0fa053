"""The learning rate: linear warm-up, then a cosine decay to a tenth of the peak."""

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from trimtab.lab.trainer.train_config import TrainConfig

_FLOOR = 0.1
"""Final learning rate of the cosine, as a share of the peak. Source: GPT-3, Llama."""


def lr_factor(step: int, *, warmup: int, steps: int) -> float:
    """The learning rate of a step as a share of the peak; steps count from 0."""
    if step < warmup:
        # Not 0 at step 0: a step with a learning rate of 0 would be wasted.
        return (step + 1) / warmup
    # The scheduler asks once more after the last step, for a value that is never used.
    progress = min((step - warmup) / max(steps - 1 - warmup, 1), 1.0)
    return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * progress))


def make_schedule(optimizer: Optimizer, config: TrainConfig) -> LambdaLR:
    """Scale the learning rates of all groups, which may differ under muP, by the same factor."""
    return LambdaLR(optimizer, partial(lr_factor, warmup=config.warmup, steps=config.steps))
