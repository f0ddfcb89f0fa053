"""Clipping by the guard: the weights are those of torch's clipping, and no gradient is changed
by anything but the clip itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, loss_of
from tests.kit.user_loop import (
    NAN,
    Run,
    are_equal,
    is_finite,
    largest_difference,
    sgd,
    watching,
    weights,
)
from torch import nn
from torch.nn import functional as F

import trimtab

BAD = 8


def record_last(run: Run, loss: torch.Tensor) -> None:
    run.optimizer.zero_grad()
    loss.backward()
    run.guard.record(loss=loss)


def keep_zeros(run: Run, loss: torch.Tensor) -> None:
    run.optimizer.zero_grad(set_to_none=False)
    run.guard.record(loss=loss)
    loss.backward()


@pytest.mark.parametrize("clear", [record_last, keep_zeros])
def test_a_step_that_the_user_skips_by_its_norm_costs_no_other_step(
    clear: Callable[[Run, torch.Tensor], None], tmp_path: Path
) -> None:
    for enabled in (False, True):
        skipped = []
        with watching(tmp_path, "protect", enabled=enabled) as run:
            for step, batch in enumerate(batches(20)):
                clear(run, loss_of(run.model, batch) * (NAN if step == BAD else 1.0))
                if torch.isfinite(run.guard.clip_grad_norm_(1.0)):
                    run.optimizer.step()
                else:
                    skipped.append(step)
        assert skipped == [BAD]


def test_an_overflow_costs_one_step_when_record_follows_backward(tmp_path: Path) -> None:
    ends = []
    for enabled in (False, True):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        still = []
        with watching(tmp_path, "protect", enabled=enabled, state={"scaler": scaler}) as run:
            for step, batch in enumerate(batches(20)):
                loss = loss_of(run.model, batch) * (NAN if step == BAD else 1.0)
                run.optimizer.zero_grad()
                scaler.scale(loss).backward()
                run.guard.record(loss=loss)
                scaler.unscale_(run.optimizer)
                run.guard.clip_grad_norm_(1.0)
                before = weights(run.model)
                scaler.step(run.optimizer)
                scaler.update()
                if are_equal(before, weights(run.model)):
                    still.append(step)
        ends.append((still, scaler.get_scale()))
    assert ends[0][0] == [BAD]
    assert ends[0] == ends[1]


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


def clip_all(run: Run) -> None:
    run.guard.clip_grad_norm_(1.0)


def give_the_norm_of_a_part(run: Run) -> None:
    norm = torch.nn.utils.clip_grad_norm_(run.model.blocks.parameters(), 1.0)
    run.guard.record(grad_norm=norm)


def say_nothing(run: Run) -> None:
    """Neither clip nor give a norm."""


@pytest.mark.parametrize("vouch", [clip_all, give_the_norm_of_a_part, say_nothing])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_no_norm_vouches_for_the_gradients_that_are_applied(
    vouch: Callable[[Run], None], is_recorded: bool, tmp_path: Path
) -> None:
    """One that was taken earlier says nothing of a NaN that came later, recorded or not."""
    with watching(tmp_path, "protect") as run:
        for step, batch in enumerate(batches(20)):
            loss = loss_of(run.model, batch)
            if is_recorded or step != BAD:
                run.guard.record(loss=loss)
            run.optimizer.zero_grad()
            loss.backward()
            vouch(run)
            if step == BAD:
                run.model.head.weight.grad[0, 0] = NAN
            run.optimizer.step()
    assert is_finite(run.model)


def test_a_norm_recorded_after_the_step_does_not_vouch_for_the_next_one(tmp_path: Path) -> None:
    with watching(tmp_path, "protect") as run:
        for step, batch in enumerate(batches(20)):
            loss = loss_of(run.model, batch)
            run.optimizer.zero_grad()
            loss.backward()
            if step == BAD:
                gradients_of(run.model)[-1][0, 0] = NAN
            norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            run.optimizer.step()
            run.guard.record(loss=loss, grad_norm=norm)
    assert is_finite(run.model)


def limit_values(model: nn.Module) -> float:
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    return 0.0


def add_noise(model: nn.Module) -> float:
    for gradient in gradients_of(model):
        gradient.add_(0.01)
    return 0.0


def log_the_norm(model: nn.Module) -> float:
    return float(torch.nn.utils.get_total_norm(gradients_of(model)))


@pytest.mark.parametrize("change", [limit_values, add_noise, log_the_norm])
def test_what_follows_the_clip_acts_on_clipped_gradients(
    change: Callable[[nn.Module], float], tmp_path: Path
) -> None:
    ends: list[Any] = []
    for enabled in (False, True):
        seen = []
        with watching(tmp_path, "protect", make=sgd, enabled=enabled) as run:
            for batch in batches(12):
                loss = 50 * loss_of(run.model, batch)
                run.guard.record(loss=loss)
                run.optimizer.zero_grad()
                loss.backward()
                run.guard.clip_grad_norm_(1.0)
                seen.append(change(run.model))
                run.optimizer.step()
        ends.append((weights(run.model), seen))
    (bare, expected), (watched, found) = ends
    assert found == pytest.approx(expected, rel=1e-4)
    assert largest_difference(bare, watched) < 1e-4
