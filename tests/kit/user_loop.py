"""Other people's training loops in a few lines: what the tests of this folder are written with."""

import gc
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trimtab
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from trimtab.core.config import Config

NAN = float("nan")

WIDE = 128
"""A matrix of this width has enough values for optimizers that quantize their state."""


def wide_model(*_: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE))


def wide_batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, WIDE, generator=generator) for _ in range(count)]


OptimizerFactory = Callable[[Any], Any]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-1, fused=True)


def poison(model: nn.Module) -> None:
    """Make every gradient NaN, as a bad batch does."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.fill_(NAN)


def is_finite(model: nn.Module) -> bool:
    """Whether every number of the model is finite, its buffers included."""
    return all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def are_equal(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def largest_difference(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def train(
    guard: Any,
    model: nn.Module,
    optimizer: Any,
    steps: int,
    *,
    nan_at: Iterable[int] = (),
    skip: Iterable[int] = (),
    before_step: Callable[[int], None] = lambda step: None,
    record: Callable[[int, torch.Tensor], dict[str, Any]] = lambda step, loss: {"loss": loss},
) -> None:
    """Train `model`; the gradients of the steps in `nan_at` are NaN, those in `skip` are left out.

    Dropout is seeded by the step, so a run without a step stays comparable to one with it.
    """
    for step, batch in enumerate(batches(steps)):
        if step in skip:
            continue
        torch.manual_seed(1000 + step)
        before_step(step)
        loss = loss_of(model, batch)
        guard.record(**record(step, loss))
        optimizer.zero_grad()
        loss.backward()
        if step in nan_at:
            poison(model)
        optimizer.step()


def without_bad_steps(factory: OptimizerFactory, steps: int, nan_at: set[int]) -> nn.Module:
    """The model of a run that nobody watches and that never saw the bad steps."""
    model = make_model()
    optimizer = factory(model.parameters())
    with trimtab.watch(model, optimizer, run_dir="unused", enabled=False) as guard:
        train(guard, model, optimizer, steps, skip=nan_at)
    return model


def losses(run_dir: Path) -> list[float]:
    return column(run_dir, "loss")


def column(run_dir: Path, name: str) -> list[float]:
    """The values of a signal; NaN where it was not recorded."""
    values: list[float] = journal_of(run_dir).column(name).values.tolist()
    return values


def discarded_steps(run_dir: Path) -> list[int]:
    """The steps that the journal gives as discarded."""
    block = journal_of(run_dir)
    flags = np.nan_to_num(block.column("discarded").values)
    steps: list[int] = block.step[flags > 0].tolist()
    return steps


def event_kinds(run_dir: Path) -> list[str]:
    return [event.kind for event in journal_of(run_dir).events]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What trimtab has logged as a warning or worse."""
    return [
        without_paths(record.getMessage())
        for record in caplog.records
        if record.name.startswith("trimtab") and record.levelno >= logging.WARNING
    ]


def without_paths(sentence: str) -> str:
    """The sentence without its paths: those of a test have the test's words in them."""
    return re.sub(r"/\S+", "", sentence)


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def unpromoted() -> Config:
    """Settings that leave the form of an optimizer alone, so that bits can be compared."""
    return Config.from_dict({"gate": {"promote": False}})
