"""The guard's clip is torch's, bit for bit, in every mode; the gate knows what it has left."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import journal_of
from tests.live.protect.made_up import fused, give_gradients, make_model, plain
from torch import nn, optim

import trimtab

MAX_NORM = 0.5
SIZES = [1.0, 0.01, 3.0, 0.001, 10.0]
FP32, BF16 = torch.float32, torch.bfloat16


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("mode", ["observe", "protect"])
@pytest.mark.parametrize(
    ("make", "reference", "dtype"),
    [
        (fused(optim.AdamW, lr=0.1), fused(optim.AdamW, lr=0.1), FP32),
        (fused(optim.AdamW, lr=0.1), fused(optim.AdamW, lr=0.1), BF16),
        (fused(optim.SGD, lr=0.1, momentum=0.9), fused(optim.SGD, lr=0.1, momentum=0.9), FP32),
        (fused(optim.Adagrad, lr=0.1), fused(optim.Adagrad, lr=0.1), BF16),
        (plain(optim.RMSprop), plain(optim.RMSprop), FP32),
    ],
)
def test_gradients_norm_and_weights_are_those_of_torch(
    make: Any, reference: Any, dtype: torch.dtype, mode: str, tmp_path: Path
) -> None:
    model, bare = make_model(dtype), make_model(dtype)
    optimizer, other = make(list(model.parameters())), reference(list(bare.parameters()))
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:
        for number, size in enumerate(SIZES):
            give_gradients(model, number, size)
            give_gradients(bare, number, size)
            guard.record(loss=1.0)
            norm = guard.clip_grad_norm_(MAX_NORM)
            assert torch.equal(norm, nn.utils.clip_grad_norm_(bare.parameters(), MAX_NORM))
            assert torch.equal(gradients(model), gradients(bare))
            optimizer.step()
            other.step()
            assert torch.equal(gradients(model), gradients(bare))
            assert torch.equal(flat(model), flat(bare))


def test_a_half_precision_norm_that_overflows_is_no_broken_gradient(tmp_path: Path) -> None:
    model = make_model(torch.float16)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3e4)
        guard.record(loss=1.0)
        assert torch.isinf(guard.clip_grad_norm_(MAX_NORM))
        optimizer.step()
    block = journal_of(tmp_path)
    assert block.column("grad_norm").values[0] == pytest.approx(3e4 * 50**0.5, rel=1e-3)
    assert block.column("discarded").values[0] == 0.0


def test_what_was_clipped_is_not_measured_again_unless_it_changed(tmp_path: Path) -> None:
    model = make_model()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        give_gradients(model, 0)
        guard.record(loss=1.0)
        guard.clip_grad_norm_(MAX_NORM)
        gate: Any = guard._monitor.gate  # type: ignore[union-attr]
        assert gate.is_as_clipped(optimizer)
        first: Any = next(model.parameters()).grad
        first[0, 0] = float("nan")
        assert not gate.is_as_clipped(optimizer)
        before = flat(model)
        optimizer.step()
        assert torch.equal(flat(model), before)  # the NaN that came after the clip is found


@pytest.mark.parametrize("between", ["close", "record", "unobserved"])
def test_whatever_comes_between_clip_and_step(between: str, tmp_path: Path) -> None:
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=1.0, fused=True)
    before = flat(model)
    guard: Any = trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect")
    give_gradients(model, 0)
    if between != "unobserved":
        guard.record(loss=1.0)
    guard.clip_grad_norm_(MAX_NORM)
    if between == "close":
        guard.close()
    elif between == "record":
        guard.record(loss=1.0)
    optimizer.step()
    moved = float((flat(model) - before).norm())
    assert moved == pytest.approx(MAX_NORM, rel=1e-4)
    guard.close()


def test_a_mixed_pair_is_clipped_by_one_norm(tmp_path: Path) -> None:
    model = make_model()
    first, second = list(model[0].parameters()), list(model[1].parameters())
    optimizers = [optim.SGD(first, lr=1.0), optim.ASGD(second, lr=1.0, lambd=0.0)]
    before = flat(model)
    with trimtab.watch(model, optimizers, run_dir=tmp_path, mode="protect") as guard:
        give_gradients(model, 0)
        guard.record(loss=1.0)
        guard.clip_grad_norm_(MAX_NORM)
        for optimizer in optimizers:
            optimizer.step()
    assert float((flat(model) - before).norm()) == pytest.approx(MAX_NORM, rel=1e-4)


def test_a_gradient_that_has_a_graph_of_its_own_is_clipped_without_one(tmp_path: Path) -> None:
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=1.0, fused=True)
    before = flat(model)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        loss = 100 * torch.stack([p.square().sum() for p in model.parameters()]).sum()
        guard.record(loss=loss)
        parameters = list(model.parameters())
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        for parameter, gradient in zip(parameters, grads, strict=True):
            parameter.grad = gradient
        norm = guard.clip_grad_norm_(MAX_NORM)
        assert not norm.requires_grad
        optimizer.step()
        optimizer.zero_grad()
        assert not guard._monitor.gate.shield.is_down  # type: ignore[union-attr]
    assert float((flat(model) - before).norm()) == pytest.approx(MAX_NORM, rel=1e-4)


@pytest.mark.parametrize("had_gradient", [True, False])
def test_a_gradient_that_takes_the_place_of_a_clipped_one_is_measured(
    had_gradient: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    replaced = list(model.parameters())[6]
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for number in range(6):
            before = flat(model)
            give_gradients(model, number, 1.0)
            if not had_gradient:
                replaced.grad = None
            guard.record(loss=1.0)
            guard.clip_grad_norm_(MAX_NORM)
            replaced.grad = None
            # Written as often as a clipped one, and often in its very place in memory.
            replaced.grad = torch.empty(4, 4).fill_(torch.nan)
            optimizer.step()
            assert torch.equal(flat(model), before)
