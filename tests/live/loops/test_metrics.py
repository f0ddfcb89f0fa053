"""What people give to `record`: an odd value costs itself, never the run's protection."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.tiny import batches, journal_of, loss_of
from tests.kit.user_loop import (
    NAN,
    column,
    discarded_steps,
    is_finite,
    losses,
    warnings_of,
    watching,
)

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


@pytest.mark.parametrize(
    "name", some_of(ODD, "a metric that is a string", "a loss that is a list", "a complex loss")
)
def test_an_odd_value_ends_neither_watching_nor_protection_and_is_said_once(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = ODD[name]
    with watching(tmp_path, "protect") as run:
        run.train(16, nan_at={12}, record=lambda step, loss: odd if step in (5, 6) else {})
    assert is_finite(run.model)
    assert discarded_steps(tmp_path) == [12]
    assert len(losses(tmp_path)) == 16
    said = [sentence for sentence in warnings_of(caplog) if "is not a number" in sentence]
    assert len(said) == (name != "a loss in a numpy array of one")


@pytest.mark.parametrize("name", ["vote", "adam_step", "param_norm"])
def test_a_metric_may_not_take_the_name_of_ours(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    true: list[float] = []

    def numbers(step: int, loss: torch.Tensor) -> dict[str, Any]:
        true.append(loss.item())
        return {name: 1.0}

    with watching(tmp_path, "protect") as run:
        run.train(8, record=numbers)
    assert losses(tmp_path) == pytest.approx(true, rel=1e-5)
    assert discarded_steps(tmp_path) == []
    assert name == "vote" or any(name in sentence for sentence in warnings_of(caplog))


def test_digits_and_signs_are_kept_and_tokens_that_nobody_gave_are_missing(tmp_path: Path) -> None:
    def numbers(step: int, loss: torch.Tensor) -> dict[str, Any]:
        seen = {"tokens_seen": 16_777_217 + step}
        return {**seen, "loss": -math.inf} if step == 3 else seen

    with watching(tmp_path) as run:
        run.train(6, record=numbers)
    assert column(tmp_path, "tokens_seen") == [16_777_217 + step for step in range(6)]
    assert losses(tmp_path)[3] == -math.inf
    block = journal_of(tmp_path)
    assert not block.column("tokens").recorded
    assert not block.column("tokens_per_second").recorded


def test_a_cosine_stays_within_one_in_bf16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).bfloat16()
    direction = torch.randn(64, 64).bfloat16()
    with watching(tmp_path, model=model) as run:
        for _ in range(45):  # the same gradient each time: gradient and momentum are parallel
            run.guard.record(loss=1.0)
            model.weight.grad = direction.clone()
            model.bias.grad = direction[0].clone()
            run.optimizer.step()
    cosines = journal_of(tmp_path).column("grad_momentum_cosine")
    assert cosines.recorded
    assert np.nanmax(np.abs(cosines.values)) <= 1.0 + 1e-6


def test_a_loss_recorded_after_the_step_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, "protect") as run:
        for batch in batches(30):
            loss = loss_of(run.model, batch)
            run.optimizer.zero_grad()
            loss.backward()
            run.optimizer.step()
            run.guard.record(loss=loss)
    assert any("record" in sentence for sentence in warnings_of(caplog))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("mode", "factor"), [("observe", 1e6), ("protect", 1e6), ("protect", NAN)])
def test_a_loss_recorded_in_evaluation_belongs_to_no_step(
    mode: str, factor: float, context: type, tmp_path: Path
) -> None:
    true = []
    with watching(tmp_path, mode) as run:
        for step, batch in enumerate(batches(10)):
            if step == 5:
                run.model.train(mode == "observe")  # either is an evaluation
                with context():
                    for other in batches(4, seed=7):
                        loss = factor * loss_of(run.model, other)
                        run.guard.record(loss=loss, tokens=other.numel())
                run.model.train()
            true.append(run.step(batch, tokens=batch.numel()).item())
    assert losses(tmp_path) == pytest.approx(true, rel=1e-5)
    assert set(column(tmp_path, "tokens")) == {36.0}
    assert mode == "observe" or discarded_steps(tmp_path) == []
