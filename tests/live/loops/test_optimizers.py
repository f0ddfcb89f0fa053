"""Optimizers that are not torch's: what cannot be read is missing, and the rest goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.tiny import journal_of, make_model
from tests.kit.user_loop import (
    NAN,
    are_equal,
    events_of,
    is_finite,
    losses,
    take_step,
    unpromoted,
    watching,
    weights,
)
from tests.live.loops.foreign_optimizers import ADAM_LIKE, KeepsMomentsInFp32

BAD = {7, 12, 13}


def protected(factory: Any, model: Any, run_dir: Path) -> list[torch.Tensor]:
    """Train with bad steps, all of which are journalled; return the weights."""
    with watching(run_dir, "protect", model=model, make=factory, config=unpromoted()) as run:
        run.train(20, nan_at=BAD)
    assert is_finite(model)
    assert len(losses(run_dir)) == 20
    return weights(model)


@pytest.mark.parametrize("factory", some_of(ADAM_LIKE, *ADAM_LIKE[1::3]))
def test_foreign_state_leaves_loss_norm_and_gate_working(factory: Any, tmp_path: Path) -> None:
    found = protected(factory, make_model(), tmp_path)
    with watching("unused", make=factory, enabled=False) as run:
        run.train(20, skip=BAD)
    assert are_equal(found, weights(run.model))
    assert journal_of(tmp_path).column("grad_norm").present.all()


def test_moments_in_another_precision_leave_the_gate_working(tmp_path: Path) -> None:
    protected(KeepsMomentsInFp32, make_model().bfloat16(), tmp_path)


def test_a_hook_of_the_user_finds_the_gradients_of_a_discarded_step(tmp_path: Path) -> None:
    norms = []

    def log_norm(optimizer: Any, *_: Any) -> None:
        norms.append([float(p.grad.norm()) for p in optimizer.param_groups[0]["params"]])

    def make(parameters: Any) -> Any:
        optimizer = torch.optim.RMSprop(parameters, lr=1e-3)
        optimizer.register_step_post_hook(log_norm)
        return optimizer

    with watching(tmp_path, "protect", make=make) as run:
        run.train(20, nan_at=BAD)
    assert len(norms) == 20
    assert is_finite(run.model)


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_parameters_added_in_mid_run_are_watched(mode: str, tmp_path: Path) -> None:
    model = make_model()
    bad = {26} if mode == "protect" else set()

    def of_head(_: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.head.parameters(), lr=1e-2)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return torch.full_like(gradient, NAN)

    handles: list[Any] = []

    def between(step: int) -> None:
        if step == 11:
            run.optimizer.add_param_group({"params": list(model.blocks.parameters())})
        if step in bad:  # of a parameter that is new
            block: Any = model.blocks[0]
            handles.append(block.attention.weight.register_hook(spoil))
        elif handles:
            handles.pop().remove()

    with watching(tmp_path, mode, model=model, make=of_head) as run:
        run.train(30, before_step=between)
    assert is_finite(model)
    block = journal_of(tmp_path)
    assert len(block) == 30
    norms = block.column("grad_norm").values
    assert norms[12] > norms[10] * 1.05  # the blocks' gradients are in it


def test_parameters_that_are_added_are_a_planned_change_and_no_incident(tmp_path: Path) -> None:
    """Gradual unfreezing: all norms jump at the step at which parameters are added."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    x = torch.randn(64, 16)

    def of_last(_: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model[3].parameters(), lr=1e-3)

    with watching(tmp_path, model=model, make=of_last) as run:
        for step in range(400):
            if step == 255:
                run.optimizer.add_param_group({"params": list(model[:3].parameters())})
            loss = (model(x) - x.sin()).square().mean() + 0.01 * torch.rand(())
            take_step(run.guard, run.optimizer, loss)
        assert run.guard.incidents == ()
    (change,) = events_of(tmp_path, "planned change")
    said = "parameters of the optimizer: 2 before, now 8"
    assert (change.step, change.facts["what"]) == (255, said)
