"""What people give to `record`: an odd value costs itself, never the run's protection."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import (
    adamw,
    column,
    discarded_steps,
    is_finite,
    losses,
    train,
    warnings_of,
)

import trimtab

ODD: dict[str, dict[str, Any]] = {
    "a metric that is None": {"accuracy": None},
    "a metric that is a string": {"phase": "warm-up"},
    "a metric that is a vector": {"accuracy": torch.ones(3)},
    "a metric that is a dict": {"parts": {"a": 1.0}},
    "a number too large for a float": {"seen": 10**400},
    "the losses of two replicas": {"loss": torch.ones(2)},
    "a loss in a numpy array of one": {"loss": np.ones(1)},
    "a loss that is a list": {"loss": [2.5]},
    "a complex loss": {"loss": torch.tensor(1 + 0j)},
}


def run_recording(
    run_dir: Path, record: Callable[[int, torch.Tensor], dict[str, Any]], *, steps: int = 10
) -> None:
    """Train in `observe`, and record in each step what this returns."""
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=run_dir) as guard:
        train(guard, model, optimizer, steps, record=record)


@pytest.mark.parametrize(
    "name", some_of(ODD, "a metric that is a string", "a loss that is a list", "a complex loss")
)
def test_an_odd_value_ends_neither_watching_nor_protection(name: str, tmp_path: Path) -> None:
    odd, model = ODD[name], make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        train(
            guard,
            model,
            optimizer,
            16,
            nan_at={12},
            record=lambda step, loss: {"loss": loss, **(odd if step == 5 else {})},
        )
    assert is_finite(model)
    assert discarded_steps(tmp_path) == [12]
    assert len(losses(tmp_path)) == 16


def test_an_odd_metric_is_named_once_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_recording(tmp_path, lambda step, loss: {"loss": loss, "phase": "warm-up"})
    assert len([sentence for sentence in warnings_of(caplog) if "phase" in sentence]) == 1


@pytest.mark.parametrize("name", ["vote", "adam_step", "param_norm"])
def test_a_metric_may_not_take_the_name_of_ours(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    true: list[float] = []

    def numbers(step: int, loss: torch.Tensor) -> dict[str, Any]:
        true.append(loss.item())
        return {"loss": loss, name: 1.0}

    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        train(guard, model, optimizer, 8, record=numbers)
    assert losses(tmp_path) == pytest.approx(true, rel=1e-5)
    assert discarded_steps(tmp_path) == []
    reserved = name in ("discarded", "param_norm", "adam_step")
    assert not reserved or any(name in sentence for sentence in warnings_of(caplog))


def test_tokens_that_nobody_gave_are_missing(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        train(guard, model, optimizer, 6)
    block = journal_of(tmp_path)
    assert not block.column("tokens").recorded
    assert not block.column("tokens_per_second").recorded


def test_a_metric_keeps_its_digits(tmp_path: Path) -> None:
    run_recording(
        tmp_path, lambda step, loss: {"loss": loss, "tokens_seen": 16_777_217 + step}, steps=6
    )
    assert column(tmp_path, "tokens_seen") == [16_777_217 + step for step in range(6)]


def test_a_loss_of_minus_infinity_stays_negative(tmp_path: Path) -> None:
    run_recording(tmp_path, lambda step, loss: {"loss": -math.inf if step == 3 else loss})
    assert losses(tmp_path)[3] == -math.inf


def test_a_cosine_stays_within_one_in_bf16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    direction = torch.randn(64, 64).bfloat16()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for _ in range(45):  # the same gradient each time: gradient and momentum are parallel
            guard.record(loss=1.0)
            model.weight.grad = direction.clone()
            model.bias.grad = direction[0].clone()
            optimizer.step()
    cosines = journal_of(tmp_path).column("grad_momentum_cosine")
    assert cosines.recorded
    assert np.nanmax(np.abs(cosines.values)) <= 1.0 + 1e-6


def test_a_loss_recorded_after_the_step_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    caplog.set_level(logging.WARNING)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for batch in batches(30):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            guard.record(loss=loss)
    assert any("record" in sentence for sentence in warnings_of(caplog))
