"""Optimizers, schedulers, a model and data, for the tests of what is saved and restored."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

FEATURES = 8

Parameters = Any
Make = Callable[[Parameters], optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "adamw-foreach": lambda p: optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw-loop": lambda p: optim.AdamW(p, lr=1e-2, foreach=False),
    "adamw-fused": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "adamw-tensor-lr": lambda p: optim.AdamW(p, lr=torch.tensor(1e-2)),
    "adam-amsgrad": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "sgd": lambda p: optim.SGD(p, lr=1e-2),
    "sgd-momentum": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9),
    "sgd-fused": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "nadam": lambda p: optim.NAdam(p, lr=1e-2),
    "radam": lambda p: optim.RAdam(p, lr=1e-2),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3),
    "adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "asgd": lambda p: optim.ASGD(p, lr=1e-2),
    "adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "rprop": lambda p: optim.Rprop(p, lr=1e-3),
}

SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.99**step),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 100),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=200),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 45), lr_scheduler.CosineAnnealingLR(o, 60)], [45]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, 1.0, 45), lr_scheduler.ExponentialLR(o, 0.99)]
    ),
    "warm-restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 25),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=3),
}


class TinyModel(nn.Module):
    """Dropout draws random numbers, BatchNorm has buffers, one buffer is not persistent."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(FEATURES, 1)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.dropout(torch.relu(self.norm(self.inner(inputs))))
        output: torch.Tensor = self.head(hidden) * (1 + 0.001 * self.calls)
        return output


def batches(count: int, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Data that is always the same."""
    dice = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, size, FEATURES, generator=dice)
    return [(part, part.sum(dim=1, keepdim=True)) for part in inputs]


def seed_all(seed: int = 0) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def assert_same(one: Any, other: Any) -> None:
    """Equal structure and bits; objects without comparison are left out."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, int | float | str | bool | type(None)):
        assert one == other
