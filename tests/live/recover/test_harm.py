"""Harm in bits that are not watched is undone within three steps; what people do is not."""

import math
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import one_of_each
from tests.kit.undo import refusals, undos
from tests.kit.user_loop import take_step
from torch import nn, optim

import trimtab
from trimtab.live.recover.memory_watch import MemoryWatch

STEPS = 60


class Run:
    """A small run, and what a test does to it before the forward pass of one step."""

    def __init__(self, dtype: torch.dtype, make: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 300), nn.Linear(300, 10)
        ).to(dtype)
        self.dtype = dtype
        self.optimizer: optim.Optimizer = make(self.model.parameters())
        self.input_factor = self.loss_factor = 1.0

    def train(self, folder: Path, at: int, edit: Callable[["Run"], None], until: int) -> None:
        """Train; `edit` is called before each of the steps from `at` to `until`."""
        with trimtab.watch(self.model, self.optimizer, run_dir=folder, mode="recover") as guard:
            for number in range(STEPS):
                self.input_factor = self.loss_factor = 1.0
                rate = self.optimizer.param_groups[0]["lr"]
                if at <= number <= until:
                    edit(self)
                x = torch.randn(64, 32, dtype=self.dtype)
                outputs = self.model(x * self.input_factor).float() * self.loss_factor
                take_step(
                    guard, self.optimizer, nn.functional.cross_entropy(outputs, x[:, :10].argmax(1))
                )
                self.optimizer.param_groups[0]["lr"] = rate


def huge_weight(run: Run) -> None:
    weight: Any = run.model[1].weight
    weight.data[3] = 3e38


def flipped_exponent(run: Run) -> None:
    weight: Any = run.model[3].weight
    bits = torch.int32 if weight.element_size() == 4 else torch.int16
    numbers = weight.detach().view(bits).view(-1).numpy()  # past torch's counters
    numbers[1234] ^= numbers.dtype.type(1 << (8 * weight.element_size() - 2))


def lost_moment(run: Run) -> None:
    weight: Any = run.model[3].weight
    state = run.optimizer.state[weight]
    moment = state.get("exp_avg", state.get("momentum_buffer"))
    moment.data[5, 5] = math.nan


def adamw(parameters: Any) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=3e-3)


def sgd(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=1e-2, momentum=0.9)


OPTIMIZERS = [adamw, sgd]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch no bits: in a large model some of them are not, in any one update."""
    monkeypatch.setattr(MemoryWatch, "after_update", lambda *_: None)


@pytest.mark.usefixtures("_blind")
@pytest.mark.parametrize(
    ("harm", "make", "dtype"),
    one_of_each(product([huge_weight, flipped_exponent, lost_moment], OPTIMIZERS, DTYPES)),
)
def test_harm_is_undone_within_three_steps(
    harm: Callable[[Run], None], make: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    at = random.Random(f"{harm.__name__} {make.__name__} {dtype}").randrange(20, 50)
    run = Run(dtype, make)
    run.train(tmp_path, at, harm, at)
    (undo,) = undos(tmp_path)
    assert undo.step - at <= 3
    assert refusals(tmp_path) == []
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    assert max(float(p.detach().abs().max()) for p in run.model.parameters()) < 10


def bad_batch(run: Run) -> None:
    run.input_factor = math.nan


def higher_rate(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] *= 333


def larger_loss(run: Run) -> None:
    run.loss_factor = 1e6


def reset_head(run: Run) -> None:
    head: Any = run.model[4].weight
    head.data = torch.randn_like(head)


@pytest.mark.parametrize(
    ("purpose", "make", "dtype"),
    one_of_each(product([bad_batch, higher_rate, larger_loss, reset_head], OPTIMIZERS, DTYPES)),
)
def test_what_is_no_harm_is_not_undone(
    purpose: Callable[[Run], None], make: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    Run(dtype, make).train(tmp_path, 45, purpose, 49 if purpose is bad_batch else 45)
    assert undos(tmp_path) == refusals(tmp_path) == []
