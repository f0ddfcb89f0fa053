"""Clipping inside the update is clipping, within rounding, and never gets lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.protect.made_up import fused, give_gradients, make_model, plain
from torch import nn, optim
from torch.optim import Optimizer

import trimtab
from trimtab.live.protect.folded_clip import TRIAL_CLIPS, FoldedClip, total_norm
from trimtab.live.shield import Shield

MAX_NORM = 0.5


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().float().view(-1) for parameter in model.parameters()])


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])


def torchs_own(make: Callable[..., Optimizer], sizes: list[float], dtype: torch.dtype) -> nn.Module:
    model = make_model(dtype)
    optimizer = make(list(model.parameters()))
    for number, size in enumerate(sizes):
        give_gradients(model, number, size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
    return model


SIZES = [1.0, 0.01, 3.0, 0.001, 10.0]


FP32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("make", "reference", "dtype"),
    [
        (fused(optim.AdamW, lr=0.1), fused(optim.AdamW, lr=0.1), FP32),
        (fused(optim.AdamW, lr=0.1), fused(optim.AdamW, lr=0.1), BF16),
        (plain(optim.AdamW, lr=0.1), fused(optim.AdamW, lr=0.1), FP32),
        (fused(optim.SGD, lr=0.1, momentum=0.9), fused(optim.SGD, lr=0.1, momentum=0.9), FP32),
        (plain(optim.SGD, lr=0.1, momentum=0.9), plain(optim.SGD, lr=0.1, momentum=0.9), BF16),
        (fused(optim.Adagrad, lr=0.1), fused(optim.Adagrad, lr=0.1), FP32),
        (fused(optim.Adagrad, lr=0.1), fused(optim.Adagrad, lr=0.1), BF16),
        (plain(optim.RMSprop), plain(optim.RMSprop), FP32),
    ],
)
def test_equal_to_torch_within_rounding(
    make: Any, reference: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = make_model(dtype)
    optimizer = make(list(model.parameters()))
    norms = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for number, size in enumerate(SIZES):
            give_gradients(model, number, size)
            true = float(gradients(model).float().norm())
            guard.record(loss=1.0)
            norms.append(float(guard.clip_grad_norm_(MAX_NORM)))
            assert norms[-1] == pytest.approx(true, rel=1e-5)
            optimizer.step()
            # Whoever looks at the gradients after the step sees them clipped, as ever.
            assert float(gradients(model).float().norm()) <= MAX_NORM * 1.01
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    expected = flat(torchs_own(reference, SIZES, dtype))
    torch.testing.assert_close(flat(model), expected, rtol=tolerance, atol=tolerance)


def test_where_nothing_is_clipped_not_a_bit_differs(tmp_path: Path) -> None:
    model = make_model()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for number in range(5):
            give_gradients(model, number, 0.01)
            guard.record(loss=1.0)
            guard.clip_grad_norm_(MAX_NORM)
            optimizer.step()
    reference = torchs_own(fused(optim.AdamW), [0.01] * 5, torch.float32)
    assert torch.equal(flat(model), flat(reference))


def test_a_half_precision_norm_does_not_overflow() -> None:
    model = make_model(torch.float16)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3e4)
    assert torch.isinf(
        torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    )
    assert float(total_norm(model.parameters())) == pytest.approx(3e4 * 50**0.5, rel=1e-3)


def test_double_precision_stays_double_and_no_gradient_is_zero() -> None:
    model = make_model(torch.float64)
    assert float(total_norm(model.parameters())) == 0.0
    give_gradients(model, 0)
    norm = total_norm(model.parameters())
    assert norm.dtype == torch.float64
    assert float(norm) == float(gradients(model).norm())


class TestAClipBelongsToItsGradients:
    """It is carried out on the gradients it was computed from, once, and on no others."""

    def folded(self, folds: bool = True) -> tuple[nn.Module, Optimizer, FoldedClip]:
        model = make_model()
        optimizer = optim.AdamW(model.parameters(), fused=True)
        shield = Shield("clip", "it stops")
        clip = FoldedClip(model, [optimizer], lambda _: folds, torch.device("cpu"), shield)
        for number in range(TRIAL_CLIPS):
            give_gradients(model, number)
            clip.clip(MAX_NORM)
            assert float(gradients(model).norm()) == pytest.approx(MAX_NORM, rel=1e-4)
            assert clip.pop(optimizer, may_fold=True) is None
        give_gradients(model, 0)
        clip.clip(MAX_NORM)
        return model, optimizer, clip

    def test_gradients_are_as_they_were_until_the_update(self) -> None:
        model, _, clip = self.folded()
        assert float(gradients(model).norm()) > MAX_NORM
        clip.settle_all()
        assert float(gradients(model).norm()) == pytest.approx(MAX_NORM, rel=1e-4)
        clip.settle_all()
        assert float(gradients(model).norm()) == pytest.approx(MAX_NORM, rel=1e-4)

    def test_an_optimizer_that_cannot_fold_has_clipped_gradients_at_once(self) -> None:
        model, optimizer, clip = self.folded(folds=False)
        assert clip.pop(optimizer, may_fold=True) is None
        assert float(gradients(model).norm()) == pytest.approx(MAX_NORM, rel=1e-4)

    def test_a_second_call_sees_what_the_first_has_left(self) -> None:
        _, _, clip = self.folded()
        assert float(clip.clip(MAX_NORM / 2)) == pytest.approx(MAX_NORM, rel=1e-4)

    def test_gradients_that_were_replaced_are_not_clipped(self) -> None:
        model, optimizer, clip = self.folded()
        give_gradients(model, 7)
        before = gradients(model)
        assert clip.pop(optimizer, may_fold=True) is None
        assert torch.equal(gradients(model), before)

    def test_a_skipped_step_takes_its_clip_along(self) -> None:
        model, optimizer, clip = self.folded()
        before = gradients(model)
        clip.forget()
        assert clip.pop(optimizer, may_fold=True) is None
        assert torch.equal(gradients(model), before)

    def test_gradients_that_change_after_the_clip_end_the_folding(self) -> None:
        model, optimizer, clip = self.folded()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(1.0)
        assert clip.pop(optimizer, may_fold=True) is None
        assert float(gradients(model).norm()) == pytest.approx(MAX_NORM, rel=1e-4)
        give_gradients(model, 1)
        clip.clip(MAX_NORM)
        assert float(gradients(model).norm()) == pytest.approx(MAX_NORM, rel=1e-4)

    def test_a_group_that_comes_later_is_not_clipped_twice(self) -> None:
        model = make_model()
        optimizer = optim.AdamW(model[0].parameters(), fused=True)
        shield = Shield("clip", "it stops")
        clip = FoldedClip(model, [optimizer], lambda _: True, torch.device("cpu"), shield)
        give_gradients(model, 0)
        clip.clip(MAX_NORM)
        optimizer.add_param_group({"params": list(model[1].parameters())})
        for number in range(TRIAL_CLIPS + 2):
            clip.settle_all()
            give_gradients(model, number)
            clip.clip(MAX_NORM)
            clip.pop(optimizer, may_fold=False)
            assert float(gradients(model).norm()) == pytest.approx(MAX_NORM, rel=1e-4)

    @pytest.mark.parametrize("between", ["close", "record", "unobserved"])
    def test_whatever_comes_between(self, between: str, tmp_path: Path) -> None:
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
        loss = 100 * flat_with_graph(model).square().sum()
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


def flat_with_graph(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.view(-1) for parameter in model.parameters()])


def test_a_norm_that_cannot_be_taken_leaves_the_clip_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(parameters: Any) -> torch.Tensor:
        raise RuntimeError("no norm of such tensors")

    monkeypatch.setattr("trimtab.live.protect.folded_clip.total_norm", fail)
    model = make_model(FP32)
    optimizer = fused(optim.AdamW, lr=0.1)(list(model.parameters()))
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for number, size in enumerate(SIZES):
            give_gradients(model, number, size)
            guard.record(loss=torch.tensor(1.0))
            guard.clip_grad_norm_(MAX_NORM)
            optimizer.step()
    expected = torchs_own(fused(optim.AdamW, lr=0.1), SIZES, FP32)
    torch.testing.assert_close(flat(model), flat(expected))
    assert sum("gate failed in clip" in record.message for record in caplog.records) == 1
