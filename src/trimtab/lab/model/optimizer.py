"""AdamW with the settings of large runs: decay on matrices only, learning rates by muP."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from trimtab.core.errors import ConfigError
from trimtab.lab.model.gpt import Gpt

_FLOOR = 0.1
"""Final learning rate of the cosine, as a share of the peak. Source: GPT-3, Llama."""


def lr_factor(step: int, *, warmup: int, steps: int) -> float:
    """Return the learning rate of a step as a share of the peak; steps count from 0."""
    if step < warmup:
        # Not 0 at step 0: a step with a learning rate of 0 would be wasted.
        return (step + 1) / warmup
    # The scheduler asks once more after the last step, for a value that is never used.
    progress = min((step - warmup) / max(steps - 1 - warmup, 1), 1.0)
    return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * progress))


def make_schedule(optimizer: Optimizer, *, warmup: int, steps: int) -> LambdaLR:
    """Scale the learning rates of all groups, which may differ under muP, by the same factor."""
    return LambdaLR(optimizer, partial(lr_factor, warmup=warmup, steps=steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The settings of AdamW."""

    lr: float
    """Peak learning rate; with muP, the one tuned at the base width."""
    beta1: float = 0.9
    """Decay rate of the first moment. Source: common to published runs."""
    beta2: float = 0.95
    """Decay rate of the second moment. 0.95 forgets a spike in 20 steps, Adam's default of 0.999 in
    1,000. Source: GPT-3, Llama, OLMo."""
    epsilon: float = 1e-8
    """Added to the root of the second moment. Source: Adam's default."""
    weight_decay: float = 0.1
    """Weight decay of matrices. Norms and embeddings are not decayed: a gain has no reason to be
    near 0, and the row of a rare token would shrink at every step without that token."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"lr must be finite and positive, got {self.lr}")
        if self.weight_decay < 0:
            raise ConfigError(f"weight_decay must not be negative, got {self.weight_decay}")


def make_optimizer(model: Gpt, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over all parameters of the model."""
    return torch.optim.AdamW(
        parameter_groups(model, lr=config.lr, weight_decay=config.weight_decay),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        # 3.5 times as fast as `foreach` (CPU, 10M parameters), and the only implementation that can
        # discard a step on the device.
        fused=True,
    )


def parameter_groups(model: Gpt, *, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Three groups: hidden matrices, the head if it is not tied, and embeddings and norms.

    Embeddings and norms are not decayed. Under muP the learning rate of hidden matrices falls with
    the width and their decay rises, because AdamW decays by the product of both (as in
    microsoft/mup).
    """
    hidden, head, plain = [], [], []
    for name, parameter in model.named_parameters():
        if "norm" in name or name.startswith("embed."):
            plain.append(parameter)
        elif name.startswith("head."):
            head.append(parameter)
        else:
            hidden.append(parameter)
    width = model.config.mup_multiplier
    groups = [
        {"params": hidden, "lr": lr / width, "weight_decay": weight_decay * width},
        {"params": head, "lr": lr, "weight_decay": weight_decay},
        {"params": plain, "lr": lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
