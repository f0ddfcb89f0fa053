"""Optimizers that are not torch's: what cannot be read is missing, and the rest goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.tiny import journal_of, make_model
from tests.kit.user_loop import (
    are_equal,
    is_finite,
    losses,
    train,
    unpromoted,
    warnings_of,
    weights,
    without_bad_steps,
)
from tests.live.loops.foreign_optimizers import ADAM_LIKE, NOT_A_NO_OP, KeepsMomentsInFp32

import trimtab
from trimtab.core.errors import TrimtabError

BAD = {7, 12, 13}


def assert_protected(factory: Any, model: Any, run_dir: Path, steps: int = 20) -> None:
    """All steps are journalled and the bad ones are as if they had never been."""
    optimizer = factory(model.parameters())
    with trimtab.watch(
        model, optimizer, run_dir=run_dir, mode="protect", config=unpromoted()
    ) as guard:
        train(guard, model, optimizer, steps, nan_at=BAD)
    assert is_finite(model)
    assert len(losses(run_dir)) == steps


@pytest.mark.parametrize("factory", some_of(ADAM_LIKE, *ADAM_LIKE[1::3]))
def test_foreign_state_leaves_loss_norm_and_gate_working(factory: Any, tmp_path: Path) -> None:
    model = make_model()
    assert_protected(factory, model, tmp_path)
    assert are_equal(weights(model), weights(without_bad_steps(factory, 20, BAD)))
    assert journal_of(tmp_path).column("grad_norm").present.all()


def test_moments_in_another_precision_leave_the_gate_working(tmp_path: Path) -> None:
    assert_protected(KeepsMomentsInFp32, make_model().bfloat16(), tmp_path)


def assert_protected_or_refused(
    factory: Any, name: str, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad step leaves no trace, or one sentence with the optimizer's name says so beforehand.

    In both cases training goes on and every step is journalled.
    """
    model = make_model()
    optimizer = factory(model.parameters())
    try:
        guard = trimtab.watch(
            model, optimizer, run_dir=run_dir, mode="protect", config=unpromoted()
        )
    except TrimtabError as error:
        refusal = str(error)
        assert name in refusal
        return
    with guard:
        train(guard, model, optimizer, 7)  # without a fault: what the guard cannot protect shows
        refused = [sentence for sentence in warnings_of(caplog) if name in sentence]
        train(guard, model, optimizer, 20, nan_at=set() if refused else BAD, skip=range(7))
    assert len(losses(run_dir)) == 20
    if not refused:
        assert are_equal(weights(model), weights(without_bad_steps(factory, 20, BAD)))


@pytest.mark.parametrize("factory", NOT_A_NO_OP)
def test_an_optimizer_that_moves_without_gradients_is_protected_or_refused(
    factory: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert_protected_or_refused(factory, factory.__name__, tmp_path, caplog)


def test_a_hook_of_the_user_finds_the_gradients_of_a_discarded_step(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    norms = []

    def log_norm(*_: Any) -> None:
        norms.append([float(parameter.grad.norm()) for parameter in model.parameters()])  # type: ignore[union-attr]

    optimizer.register_step_post_hook(log_norm)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        train(guard, model, optimizer, 20, nan_at=BAD)
    assert len(norms) == 20
    assert is_finite(model)


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_parameters_added_in_mid_run_are_watched(mode: str, tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
    bad = {13, 17} if mode == "protect" else set()

    def unfreeze(step: int) -> None:
        if step == 11:
            optimizer.add_param_group({"params": list(model.blocks.parameters())})

    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:
        train(guard, model, optimizer, 25, before_step=unfreeze)
        optimizer.zero_grad()
        for step in range(25, 30):
            train(
                guard, model, optimizer, step + 1, skip=range(step), nan_at={26} if bad else set()
            )
    assert is_finite(model)
    block = journal_of(tmp_path)
    assert len(block) == 30
    norms = block.column("grad_norm").values
    assert norms[12] > norms[10] * 1.05  # the blocks' gradients are in it


def test_parameters_that_are_added_are_a_planned_change_and_no_incident(tmp_path: Path) -> None:
    """Gradual unfreezing: all norms jump at the step at which parameters are added."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    optimizer = torch.optim.AdamW(model[3].parameters(), lr=1e-3)
    x = torch.randn(64, 16)
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for step in range(400):
            if step == 255:
                optimizer.add_param_group({"params": list(model[:3].parameters())})
            loss = (model(x) - x.sin()).square().mean() + 0.01 * torch.rand(())
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert guard.incidents == ()
    (change,) = [e for e in journal_of(tmp_path).events if e.kind == "planned change"]
    assert (change.step, change.facts["what"]) == (
        255,
        "parameters of the optimizer: 2 before, now 8",
    )


def test_a_new_parameter_whose_gradient_is_nan_is_kept_out(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)

    block: Any = model.blocks[0]

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return torch.full_like(gradient, float("nan"))

    handles: list[Any] = []

    def unfreeze(step: int) -> None:
        if step == 3:
            optimizer.add_param_group({"params": list(model.blocks.parameters())})
        if step == 5:
            handles.append(block.attention.weight.register_hook(spoil))
        if step == 6:
            handles[0].remove()

    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        train(guard, model, optimizer, 15, before_step=unfreeze)
    assert is_finite(model)
    assert len(losses(tmp_path)) == 15
