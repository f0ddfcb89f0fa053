"""What ordinary code does to weights, moments and buffers on purpose is never undone."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import one_of_each
from tests.kit.launch import run_ranks
from tests.kit.undo import (
    KINDS,
    Edit,
    flip_bit,
    flip_weight,
    refusals,
    train,
    undos,
)
from tests.kit.user_loop import events_of, take_step, watching
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.config import Config

AT = 25


def acts(run_dir: Path) -> list[str]:
    """Return what was undone, refused or discarded."""
    kinds = ("undo", "harm not undone", "step discarded", "gradient scaled down")
    return [event.kind for event in events_of(run_dir, *kinds)]


adamw = partial(optim.AdamW, lr=3e-3, fused=True)


class WithBias(nn.Module):
    """A classifier whose classes can be switched off, with a mask and running statistics."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 24)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 8)
        self.register_buffer("mask", torch.ones(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.inner(x)).relu() * self.mask)
        return logits


def classify(
    run_dir: Path,
    edits: dict[int, Callable[[Any, optim.Optimizer], None]],
    *,
    after: Callable[[int, Any], None] = lambda number, model: None,
    steps: int = 60,
) -> Any:
    """Train the classifier on the first seven of its eight classes."""
    torch.manual_seed(0)
    model = WithBias()
    centers = torch.randn(8, 12)
    often = Config().override({"recover.snapshot_every": 10})
    with watching(run_dir, "recover", model=model, make=adamw, config=often) as run:
        for number in range(steps):
            if number in edits:
                edits[number](model, run.optimizer)
            labels = torch.randint(0, 7, (16,))
            inputs = centers[labels] + torch.randn(16, 12)
            take_step(run.guard, run.optimizer, F.cross_entropy(model(inputs), labels))
            after(number, model)
    return model


def flip_inner(bit: int) -> Callable[[Any, optim.Optimizer], None]:
    return lambda model, optimizer: flip_bit(model.inner.weight, bit)


def switch_off(model: Any, optimizer: optim.Optimizer) -> None:
    with torch.no_grad():
        model.head.bias[7] = -torch.inf


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_bias_of_minus_infinity_is_left_alone(is_counted: bool, tmp_path: Path) -> None:
    past_torch = lambda model, _: model.head.bias.data[7].fill_(-torch.inf)  # noqa: E731
    model = classify(tmp_path, {AT: switch_off if is_counted else past_torch})
    assert acts(tmp_path) == []
    assert model.head.bias[7] == -torch.inf


def test_a_flip_after_an_infinity_on_purpose_is_still_undone(tmp_path: Path) -> None:
    """Snapshots with the user's infinity in them are good ones."""
    model = classify(tmp_path, {AT: switch_off, AT + 30: flip_inner(28)}, steps=80)
    assert len(undos(tmp_path)) == 1
    assert model.head.bias[7] == -torch.inf


# Moments that code writes: torch counts it.


def load_other_moments(optimizer: optim.Optimizer) -> None:
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state["exp_avg_sq"] = state["exp_avg_sq"] * 1e-4
    optimizer.load_state_dict(saved)


def prune(moment: torch.Tensor) -> torch.Tensor:
    """Prune at random, as ReLoRA does."""
    dice = torch.Generator().manual_seed(1)
    return moment.mul_(torch.rand(moment.shape, generator=dice) > 0.9)


MOMENTS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "zero squares": lambda o: [state["exp_avg_sq"].zero_() for state in o.state.values()],
    "shrink squares": lambda o: [state["exp_avg_sq"].mul_(1e-4) for state in o.state.values()],
    "prune": lambda o: [prune(s[k]) for s in o.state.values() for k in ("exp_avg", "exp_avg_sq")],
    "load others": load_other_moments,
    "clear": lambda o: o.state.clear(),
}


@pytest.mark.parametrize(("name", "at"), one_of_each(product(MOMENTS, range(25, 30))))
def test_moments_that_code_writes_are_no_proof(name: str, at: int, tmp_path: Path) -> None:
    """An audit follows every tenth update: the outcome must not depend on when that is."""
    edit: Edit = lambda loop: MOMENTS[name](loop.optimizers[0])  # noqa: E731
    train(KINDS["plain"], tmp_path, "recover", edits={at: edit})
    assert undos(tmp_path) == refusals(tmp_path) == []


# Everything that belongs to the state returns, and nothing else.


class OwnNumbers(optim.Optimizer):
    """Keeps numbers in its groups, as Prodigy does, and state that belongs to no parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2, "k": 0, "d": 1.0, "weight_sum": 0.0})
        self.calls = 0
        self.state["global"] = {"n": 0}  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            if not trained:
                continue
            self.calls += 1
            group["k"] += 1
            group["weight_sum"] += group["lr"]
            group["d"] = max(group["d"], float(sum(p.grad.norm() for p in trained)))
            self.state["global"]["n"] += 1  # type: ignore[index]
            for parameter in trained:
                state = self.state[parameter]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(parameter)
                state["mean"].mul_(0.9).add_(parameter.grad)
                parameter.add_(state["mean"], alpha=-group["lr"])


def test_numbers_that_the_optimizer_writes_itself_are_restored(tmp_path: Path) -> None:
    numbers: list[tuple[float, ...]] = []
    rates: list[float] = []

    def note(optimizer: Any) -> None:
        group = optimizer.param_groups[0]
        calls, shared = optimizer.calls, optimizer.state["global"]["n"]
        numbers.append((calls, shared, group["k"], group["weight_sum"], group["d"]))
        rates.append(group["lr"])

    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    with watching(tmp_path, "recover", model=model, make=OwnNumbers) as run:
        for step in range(40):
            run.optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / 100)  # the user's own schedule
            loss = model(torch.randn(4, 8)).square().mean()
            if step == AT:
                run.guard.undo(1)
            take_step(run.guard, run.optimizer, loss)
            note(run.optimizer)
    (undo,) = undos(tmp_path)
    assert numbers[undo.step] == numbers[int(undo.facts["to_step"]) - 1]
    assert rates == [1e-2 * (1 - step / 100) for step in range(40)]


def test_a_mask_that_code_has_changed_stays_and_running_statistics_return(tmp_path: Path) -> None:
    means: list[torch.Tensor] = []

    def prune(model: Any, optimizer: optim.Optimizer) -> None:
        model.mask[:6] = 0

    def note(number: int, model: Any) -> None:
        means.append(model.norm.running_mean.clone())

    model = classify(tmp_path, {31: prune, 32: flip_inner(26)}, after=note)
    (undo,) = undos(tmp_path)
    assert int((model.mask == 0).sum()) == 6
    assert torch.equal(means[undo.step], means[int(undo.facts["to_step"]) - 1])


def test_running_statistics_that_are_not_finite_are_repaired_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss stays finite; every evaluation would be NaN for ever."""

    def lose(model: Any, optimizer: optim.Optimizer) -> None:
        model.norm.running_mean.numpy()[3] = np.nan

    model = classify(tmp_path, {AT: lose})
    assert torch.isfinite(model.norm.running_mean).all()
    (event,) = events_of(tmp_path, "buffer repaired")
    assert event.facts["tensor"] == "norm.running_mean"
    assert caplog.text.count("evaluation would be NaN") == 1
    assert undos(tmp_path) == []


# What is said.


def lookahead() -> Callable[[int, Any], None]:
    """Return a Lookahead that keeps slow weights of its own and writes them back."""
    slow: list[torch.Tensor] = []

    def sync(number: int, model: Any) -> None:
        if not slow:
            slow.extend(p.detach().clone() for p in model.parameters())
        if number % 5 == 4:
            with torch.no_grad():
                for kept, parameter in zip(slow, model.parameters(), strict=True):
                    kept.lerp_(parameter, 0.5)
                    parameter.copy_(kept)

    return sync


def test_a_second_copy_that_brings_the_harm_back_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def flip(model: Any, optimizer: optim.Optimizer) -> None:
        flip_bit(model.head.weight, 30)

    classify(tmp_path, {34: flip}, after=lookahead(), steps=50)
    assert "another copy of the weights brings it back: pass it as state={...}" in caplog.text
    (outcome,) = events_of(tmp_path, "undo outcome")
    assert outcome.facts["helped"] is False


def test_harm_that_never_showed_in_the_loss_is_not_said_to_be_helped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bit = partial(flip_weight, bit=24)
    train(KINDS["plain"], tmp_path, "recover", steps=110, edits={60: bit})
    (outcome,) = events_of(tmp_path, "undo outcome")
    assert outcome.facts["showed"] is False
    assert "is over: the loss is " in caplog.text
    assert " works: the loss" not in caplog.text
    assert "before the fault" not in caplog.text


def test_an_undo_that_is_refused_harms_nothing(tmp_path: Path) -> None:
    train(KINDS["plain"], tmp_path, "recover", steps=12, edits={1: lambda loop: loop.guard.undo(9)})
    (refusal,) = events_of(tmp_path, "not undone as asked")
    assert refusal.facts["why"] == "asked for by guard.undo"
    assert refusals(tmp_path) == []
    assert trimtab.diagnose(tmp_path).incidents == ()


# Replicas that all have it are code.


def replicas(folder: Path, edit: str, ranks: tuple[int, ...], rank: int) -> float:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    generator = torch.Generator().manual_seed(rank)
    with watching(folder, "recover", model=model, make=adamw) as run:
        for number in range(40):
            if number == AT and rank in ranks:
                weight = next(model.parameters()).data  # quadrupled it looks like a flipped bit
                weight[3, 3].mul_(4) if edit == "quadruple one" else weight[:, 4].mul_(0.5)
            loss = model(torch.randn(4, 16, generator=generator)).square().mean()
            take_step(run.guard, run.optimizer, loss)
    dist.barrier()
    return float(next(model.parameters()).detach().double().sum())


@pytest.mark.parametrize(
    ("edit", "ranks", "num_undos"),
    [("quadruple one", (0, 1), 0), ("halve a column", (0, 1), 0), ("quadruple one", (1,), 1)],
)
def test_the_same_on_all_ranks_is_code(
    edit: str, ranks: tuple[int, ...], num_undos: int, tmp_path: Path
) -> None:
    sums = run_ranks(partial(replicas, tmp_path, edit, ranks), 2)
    assert len(undos(tmp_path)) == num_undos
    assert refusals(tmp_path) == []
    assert sums[0] == sums[1]
