"""Loops around the tiny model as users write them, and what they leave behind."""

import gc
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trimtab
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from trimtab.core.block import Event
from trimtab.core.config import Config

NAN = float("nan")


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-1, fused=True)


def take_step(
    guard: Any,
    optimizer: Any,
    loss: torch.Tensor,
    *,
    clip: float | None = None,
    spoils: bool = False,
    **recorded: Any,
) -> torch.Tensor:
    """Take a step as in the README, with one optimizer or several; return its loss.

    A step that `spoils` has only NaN in its gradients, as after a bad batch.
    """
    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    guard.record(loss=loss, **recorded)
    loss.backward()
    for one in several if spoils else ():
        poison(one)
    if clip is not None:
        guard.clip_grad_norm_(clip)
    for one in several:
        one.step()
        one.zero_grad()
    return loss.detach()


def poison(optimizer: Any) -> None:
    """Make every gradient of an optimizer NaN."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.fill_(NAN)


@dataclass
class Run:
    """A loop that is watched."""

    guard: Any
    model: Any
    optimizer: Any

    def step(self, batch: torch.Tensor, *, factor: float = 1.0, **options: Any) -> torch.Tensor:
        return take_step(self.guard, self.optimizer, factor * loss_of(self.model, batch), **options)

    def train(
        self,
        steps: int,
        *,
        nan_at: Iterable[int] = (),
        skip: Iterable[int] = (),
        before_step: Callable[[int], object] = lambda step: None,
        record: Callable[[int, torch.Tensor], dict[str, Any]] = lambda step, loss: {},
    ) -> None:
        """Train; the gradients of the steps in `nan_at` are NaN, those in `skip` are left out.

        Dropout is seeded by the step, so a run without a step stays comparable to one with it.
        """
        for step, batch in enumerate(batches(steps)):
            if step in skip:
                continue
            torch.manual_seed(1000 + step)
            before_step(step)
            loss = loss_of(self.model, batch)
            recorded = {"loss": loss, **record(step, loss)}
            self.guard.record(**recorded)
            self.optimizer.zero_grad()
            loss.backward()
            if step in nan_at:
                poison(self.optimizer)
            self.optimizer.step()


@contextmanager
def watching(
    run_dir: Path | str,
    mode: str = "observe",
    *,
    model: Any = None,
    make: Callable[[Any], Any] = adamw,
    **options: Any,
) -> Iterator[Run]:
    """Watch a model, or the tiny one, with the optimizer that is made of its parameters."""
    model = make_model() if model is None else model
    optimizer = make(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=run_dir, mode=mode, **options) as guard:
        yield Run(guard, model, optimizer)


def unpromoted() -> Config:
    """Settings that leave the form of an optimizer alone, so that bits can be compared."""
    return Config.from_dict({"gate": {"promote": False}})


def is_finite(model: nn.Module) -> bool:
    """Whether every number of the model is finite, its buffers included."""
    return all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def are_equal(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def largest_difference(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def column(run_dir: Path, name: str) -> list[float]:
    """The values of a signal; NaN where it was not recorded."""
    values: list[float] = journal_of(run_dir).column(name).values.tolist()
    return values


def losses(run_dir: Path) -> list[float]:
    return column(run_dir, "loss")


def steps_with(run_dir: Path, name: str) -> list[int]:
    """The steps in which a signal was recorded."""
    block = journal_of(run_dir)
    steps: list[int] = block.step[block.column(name).present].tolist()
    return steps


def discarded_steps(run_dir: Path) -> list[int]:
    block = journal_of(run_dir)
    flags = np.nan_to_num(block.column("discarded").values)
    steps: list[int] = block.step[flags > 0].tolist()
    return steps


def events_of(run_dir: Path, *kinds: str) -> list[Event]:
    """The events of the journal, or those of some kinds."""
    return [event for event in journal_of(run_dir).events if not kinds or event.kind in kinds]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
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
