"""Clipping by the guard: the weights are those of torch's clipping, and no gradient is changed
by anything but the clip itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import (
    NAN,
    adamw,
    are_equal,
    is_finite,
    largest_difference,
    poison,
    sgd,
    weights,
)
from torch import nn
from torch.nn import functional as F

import trimtab

BAD = 8


def skips_by_a_check_of_the_norm(run_dir: Path, *, enabled: bool, clear: Callable[..., Any]) -> Any:
    """Steps that the user's check of the returned norm skips; record follows backward."""
    model = make_model()
    optimizer = adamw(model.parameters())
    skipped = []
    with trimtab.watch(model, optimizer, run_dir=run_dir, mode="protect", enabled=enabled) as guard:
        for step, batch in enumerate(batches(20)):
            loss = loss_of(model, batch) * (NAN if step == BAD else 1.0)
            clear(optimizer, guard, loss)
            if torch.isfinite(guard.clip_grad_norm_(1.0)):
                optimizer.step()
            else:
                skipped.append(step)
    return skipped


def record_last(optimizer: Any, guard: Any, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    guard.record(loss=loss)


def keep_zeros(optimizer: Any, guard: Any, loss: torch.Tensor) -> None:
    optimizer.zero_grad(set_to_none=False)
    guard.record(loss=loss)
    loss.backward()


@pytest.mark.parametrize("clear", [record_last, keep_zeros])
def test_a_step_that_the_user_skips_by_its_norm_costs_no_other_step(
    clear: Callable[..., Any], tmp_path: Path
) -> None:
    assert skips_by_a_check_of_the_norm(tmp_path, enabled=False, clear=clear) == [BAD]
    assert skips_by_a_check_of_the_norm(tmp_path, enabled=True, clear=clear) == [BAD]


def steps_without_update_under_a_scaler(run_dir: Path, *, enabled: bool) -> tuple[list[int], float]:
    model = make_model()
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    still = []
    with trimtab.watch(
        model, optimizer, run_dir=run_dir, mode="protect", enabled=enabled, state={"scaler": scaler}
    ) as guard:
        for step, batch in enumerate(batches(20)):
            loss = loss_of(model, batch) * (NAN if step == BAD else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            guard.record(loss=loss)
            scaler.unscale_(optimizer)
            guard.clip_grad_norm_(1.0)
            before = weights(model)
            scaler.step(optimizer)
            scaler.update()
            if are_equal(before, weights(model)):
                still.append(step)
    return still, scaler.get_scale()


def test_an_overflow_costs_one_step_when_record_follows_backward(tmp_path: Path) -> None:
    bare = steps_without_update_under_a_scaler(tmp_path, enabled=False)
    assert bare[0] == [BAD]
    assert steps_without_update_under_a_scaler(tmp_path, enabled=True) == bare


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def alternate(run_dir: Path, *, enabled: bool) -> tuple[list[torch.Tensor], list[float]]:
    """A GAN whose guard clips; the weights and by how much `record` changed G's gradient."""
    torch.manual_seed(0)
    pair = nn.ModuleDict({"g": nn.Linear(8, 2), "d": nn.Linear(2, 1)})
    generator, critic = pair["g"], pair["d"]
    of_g, of_d = sgd(generator.parameters()), sgd(critic.parameters())
    changes = []
    with trimtab.watch(
        pair, [of_d, of_g], run_dir=run_dir, mode="protect", enabled=enabled
    ) as guard:
        for _ in range(12):
            fake = generator(torch.randn(32, 8))
            real = critic(torch.randn(32, 2))
            loss = 50 * (F.softplus(-real).mean() + F.softplus(critic(fake.detach())).mean())
            pair.zero_grad()
            loss.backward()
            guard.record(loss=loss)
            guard.clip_grad_norm_(1.0)
            of_d.step()
            loss = F.softplus(-critic(fake)).mean()
            pair.zero_grad()
            loss.backward()
            before = [gradient.clone() for gradient in gradients_of(generator)]
            guard.record(loss=loss)
            changes.append(largest_difference(before, gradients_of(generator)))
            guard.clip_grad_norm_(1.0)
            of_g.step()
    return weights(pair), changes


def test_record_changes_no_gradient_of_the_other_optimizer(tmp_path: Path) -> None:
    bare, _ = alternate(tmp_path, enabled=False)
    watched, changes = alternate(tmp_path, enabled=True)
    assert max(changes) == 0.0
    assert largest_difference(bare, watched) < 1e-5


def clip_all(model: Any, guard: Any) -> None:
    guard.clip_grad_norm_(1.0)
    model.head.weight.grad[0, 0] = NAN


def give_the_norm_of_a_part(model: Any, guard: Any) -> None:
    guard.record(grad_norm=torch.nn.utils.clip_grad_norm_(model.blocks.parameters(), 1.0))
    model.head.weight.grad[0, 0] = NAN


@pytest.mark.parametrize("vouch", [clip_all, give_the_norm_of_a_part])
def test_a_norm_taken_earlier_does_not_vouch_for_the_gradients_that_are_applied(
    vouch: Callable[..., None], tmp_path: Path
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for step, batch in enumerate(batches(20)):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            if step == BAD:
                vouch(model, guard)
            else:
                guard.clip_grad_norm_(1.0)
            optimizer.step()
    assert is_finite(model)


def test_a_norm_recorded_after_the_step_does_not_vouch_for_the_next_one(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for step, batch in enumerate(batches(20)):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            if step == BAD:
                gradients_of(model)[-1][0, 0] = NAN
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            guard.record(loss=loss, grad_norm=norm)
    assert is_finite(model)


def limit_values(model: nn.Module) -> float:
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    return 0.0


def add_noise(model: nn.Module) -> float:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(0.01)
    return 0.0


def log_the_norm(model: nn.Module) -> float:
    return float(torch.nn.utils.get_total_norm(gradients_of(model)))


def clip_and_then(
    change: Callable[[nn.Module], float], run_dir: Path, *, enabled: bool
) -> tuple[list[torch.Tensor], list[float]]:
    model = make_model()
    optimizer = sgd(model.parameters())
    seen = []
    with trimtab.watch(model, optimizer, run_dir=run_dir, mode="protect", enabled=enabled) as guard:
        for batch in batches(12):
            loss = 50 * loss_of(model, batch)
            guard.record(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            guard.clip_grad_norm_(1.0)
            seen.append(change(model))
            optimizer.step()
    return weights(model), seen


@pytest.mark.parametrize("change", [limit_values, add_noise, log_the_norm])
def test_what_follows_the_clip_acts_on_clipped_gradients(
    change: Callable[[nn.Module], float], tmp_path: Path
) -> None:
    bare, expected = clip_and_then(change, tmp_path, enabled=False)
    watched, seen = clip_and_then(change, tmp_path, enabled=True)
    assert seen == pytest.approx(expected, rel=1e-4)
    assert largest_difference(bare, watched) < 1e-4


@pytest.mark.parametrize("clips", [False, True])
def test_a_step_that_nobody_recorded_is_looked_at_too(clips: bool, tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for step, batch in enumerate(batches(12)):
            loss = loss_of(model, batch)
            if step != BAD:
                guard.record(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            if step == BAD:
                poison(model)
            if clips:
                guard.clip_grad_norm_(1.0)
            optimizer.step()
    assert is_finite(model)
