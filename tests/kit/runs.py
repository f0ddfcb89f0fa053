"""A small training run that can return to an earlier step, for the tests of restoring."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.kept_state import KeptState

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


@dataclass(kw_only=True)
class Run:
    """All objects of a run, made from one seed."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    loader: Iterable[Any]
    schedulers: list[Any] = field(default_factory=list)
    accumulate: int = 1
    after_step: Callable[[int], None] = lambda step: None
    losses: dict[int, float] = field(default_factory=dict)

    def train(self, until: int, *, back: dict[int, int] | None = None, every: int = 10) -> None:
        """Train to a step; `back` maps steps before which to return to the step they return to."""
        back = dict(back or {})
        data = [*self.loader]
        position = 0
        inputs = Inputs(self.model, self.optimizers, scheduler=self.schedulers)
        taken: dict[int, tuple[KeptState, int]] = {}
        step = 0
        while step < until:
            if step in back:
                target = back.pop(step)
                kept, position = taken[target]
                kept.restore()
                step = target
            elif step % every == 0 and step not in taken:
                taken[step] = (KeptState(inputs), position)
            self._train_step(data[position : position + self.accumulate], step)
            position += self.accumulate
            self.after_step(step)
            step += 1

    def _train_step(self, batches: list[Any], step: int) -> None:
        total = 0.0
        for inputs, targets in batches:
            loss = nn.functional.mse_loss(self.model(inputs).float(), targets) / self.accumulate
            total += loss.item()
            loss.backward()
        self.losses[step] = total
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            metrics = (total,) if "Plateau" in type(scheduler).__name__ else ()
            scheduler.step(*metrics)
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def batches(count: int, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Data that is always the same."""
    dice = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, size, FEATURES, generator=dice)
    return [(part, part.sum(dim=1, keepdim=True)) for part in inputs]


class TiedModel(nn.Module):
    """Two layers that share their weight, in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES, bias=False)
        self.second = nn.Linear(FEATURES, FEATURES, bias=False)
        self.second.weight = self.first.weight
        self.to(torch.bfloat16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(torch.relu(self.first(inputs.to(torch.bfloat16))))
        return hidden.sum(dim=1, keepdim=True)


def tied_run() -> Run:
    """A run with tied weights in bf16."""
    seed_all()
    model = TiedModel()
    return Run(
        model=model,
        optimizers=[torch.optim.AdamW(model.parameters(), lr=1e-3)],
        loader=batches(400),
    )


def seed_all(seed: int = 0) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def same_run(one: Run, other: Run) -> None:
    """Assert that two runs are in the same state, to the last bit."""
    assert one.losses == other.losses
    for mine, theirs in zip(
        one.model.state_dict().values(), other.model.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs)
    for name, buffer in one.model.named_buffers():
        assert torch.equal(buffer, dict(other.model.named_buffers())[name]), name
    for mine, theirs in zip(one.optimizers, other.optimizers, strict=True):
        assert_same(mine.state_dict(), theirs.state_dict())
    for mine, theirs in zip(one.schedulers, other.schedulers, strict=True):
        assert_same(mine.state_dict(), theirs.state_dict())


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
