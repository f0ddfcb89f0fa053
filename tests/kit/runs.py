"""A small training run that can return to an earlier step, for the tests of restoring."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.state.snapshot import Snapshot
from trimtab.state.training_state import TrainingState

FEATURES = 8


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
        state = TrainingState(self.model, self.optimizers, schedulers=self.schedulers)
        taken: dict[int, tuple[Snapshot, int]] = {}
        step = 0
        while step < until:
            if step in back:
                target = back.pop(step)
                snapshot, position = taken[target]
                snapshot.restore()
                snapshot.restore_random_state()
                step = target
            elif step % every == 0 and step not in taken:
                taken[step] = (Snapshot(state), position)
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
