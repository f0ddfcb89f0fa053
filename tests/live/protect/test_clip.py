"""The guard's clip is torch's, bit for bit, in every mode; the gate knows what it has left."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import journal_of
from tests.kit.user_loop import are_equal, watching, weights
from tests.live.protect.made_up import fused, give_gradients, make_model, plain, protecting
from torch import nn, optim

import trimtab

MAX_NORM = 0.5
SIZES = [1.0, 0.01, 3.0, 0.001, 10.0]
FP32, BF16 = torch.float32, torch.bfloat16


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def distance(model: nn.Module, before: list[torch.Tensor]) -> float:
    """How far the weights have moved."""
    moved = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
    return float(nn.utils.get_total_norm(moved))


@pytest.mark.parametrize("mode", ["observe", "protect"])
@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (fused(optim.AdamW, lr=0.1), FP32),
        (fused(optim.AdamW, lr=0.1), BF16),
        (fused(optim.SGD, lr=0.1, momentum=0.9), FP32),
        (fused(optim.Adagrad, lr=0.1), BF16),
        (plain(optim.RMSprop), FP32),
    ],
)
def test_gradients_norm_and_weights_are_those_of_torch(
    make: Any, dtype: torch.dtype, mode: str, tmp_path: Path
) -> None:
    bare = make_model(dtype)
    other = make(list(bare.parameters()))
    with protecting(tmp_path, make, mode, dtype=dtype) as run:
        for number, size in enumerate(SIZES):
            give_gradients(run.model, number, size)
            give_gradients(bare, number, size)
            run.guard.record(loss=1.0)
            norm = run.guard.clip_grad_norm_(MAX_NORM)
            assert torch.equal(norm, nn.utils.clip_grad_norm_(bare.parameters(), MAX_NORM))
            assert are_equal(gradients(run.model), gradients(bare))
            run.optimizer.step()
            other.step()
            assert are_equal(gradients(run.model), gradients(bare))
            assert are_equal(run.model.parameters(), bare.parameters())


def test_a_half_precision_norm_that_overflows_is_no_broken_gradient(tmp_path: Path) -> None:
    with protecting(tmp_path, plain(optim.SGD, lr=1e-3), dtype=torch.float16) as run:
        for parameter in run.model.parameters():
            parameter.grad = torch.full_like(parameter, 3e4)
        run.guard.record(loss=1.0)
        assert torch.isinf(run.guard.clip_grad_norm_(MAX_NORM))
        run.optimizer.step()
    block = journal_of(tmp_path)
    assert block.column("grad_norm").values[0] == pytest.approx(3e4 * 50**0.5, rel=1e-3)
    assert block.column("discarded").values[0] == 0.0


def test_what_was_clipped_is_not_measured_again_unless_it_changed(tmp_path: Path) -> None:
    with protecting(tmp_path, fused(optim.AdamW)) as run:
        give_gradients(run.model, 0)
        run.guard.record(loss=1.0)
        run.guard.clip_grad_norm_(MAX_NORM)
        gate: Any = run.guard._monitor.gate
        assert gate.is_as_clipped(run.optimizer)
        gradients(run.model)[0][0, 0] = float("nan")
        assert not gate.is_as_clipped(run.optimizer)
        assert not run.moves(run.optimizer.step)  # the NaN that came after the clip is found


@pytest.mark.parametrize("between", ["close", "record", "unobserved"])
def test_whatever_comes_between_clip_and_step(between: str, tmp_path: Path) -> None:
    with protecting(tmp_path, fused(optim.SGD, lr=1.0)) as run:
        before = weights(run.model)
        give_gradients(run.model, 0)
        if between != "unobserved":
            run.guard.record(loss=1.0)
        run.guard.clip_grad_norm_(MAX_NORM)
        if between == "close":
            run.guard.close()
        elif between == "record":
            run.guard.record(loss=1.0)
        run.optimizer.step()
        assert distance(run.model, before) == pytest.approx(MAX_NORM, rel=1e-4)


def test_a_mixed_pair_is_clipped_by_one_norm(tmp_path: Path) -> None:
    model = make_model()
    first, second = list(model[0].parameters()), list(model[1].parameters())
    optimizers = [optim.SGD(first, lr=1.0), optim.ASGD(second, lr=1.0, lambd=0.0)]
    before = weights(model)
    with trimtab.watch(model, optimizers, run_dir=tmp_path, mode="protect") as guard:
        give_gradients(model, 0)
        guard.record(loss=1.0)
        guard.clip_grad_norm_(MAX_NORM)
        for optimizer in optimizers:
            optimizer.step()
    assert distance(model, before) == pytest.approx(MAX_NORM, rel=1e-4)


def test_a_gradient_that_has_a_graph_of_its_own_is_clipped_without_one(tmp_path: Path) -> None:
    with protecting(tmp_path, fused(optim.SGD, lr=1.0)) as run:
        parameters = list(run.model.parameters())
        before = weights(run.model)
        loss = 100 * torch.stack([p.square().sum() for p in parameters]).sum()
        run.guard.record(loss=loss)
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        for parameter, gradient in zip(parameters, grads, strict=True):
            parameter.grad = gradient
        norm = run.guard.clip_grad_norm_(MAX_NORM)
        assert not norm.requires_grad
        run.optimizer.step()
        run.optimizer.zero_grad()
        assert not run.guard._monitor.gate.shield.is_down
    assert distance(run.model, before) == pytest.approx(MAX_NORM, rel=1e-4)


@pytest.mark.parametrize("had_gradient", [True, False])
def test_a_gradient_that_takes_the_place_of_a_clipped_one_is_measured(
    had_gradient: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    replaced = list(model.parameters())[6]
    with watching(tmp_path, "protect", model=model, make=optim.SGD) as run:
        for number in range(6):
            before = weights(model)
            give_gradients(model, number, 1.0)
            if not had_gradient:
                replaced.grad = None
            run.guard.record(loss=1.0)
            run.guard.clip_grad_norm_(MAX_NORM)
            replaced.grad = None
            # Written as often as a clipped one, and often in its very place in memory.
            replaced.grad = torch.empty(4, 4).fill_(torch.nan)
            run.optimizer.step()
            assert are_equal(weights(model), before)
