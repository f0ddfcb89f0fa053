"""Steps that the user skips: what was recorded for them ends with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import NAN, adamw, are_equal, discarded_steps, losses, weights

import trimtab

BAD = 6
STEPS = 12


def run(run_dir: Path, *, how: str, mode: str = "protect", enabled: bool = True) -> Any:
    """The user looks at the loss and leaves a NaN batch out."""
    model = make_model()
    optimizer = adamw(model.parameters())
    still = []
    guard: Any = trimtab.watch(model, optimizer, run_dir=run_dir, mode=mode, enabled=enabled)
    with guard:

        def body(step: int, batch: torch.Tensor) -> None:
            loss = loss_of(model, batch) * (NAN if step == BAD else 1.0)
            guard.record(loss=loss, tokens=batch.numel())
            if not torch.isfinite(loss):
                if how == "skip" and enabled:
                    guard.skip()
                return
            optimizer.zero_grad()
            loss.backward()
            before = weights(model)
            optimizer.step()
            if are_equal(before, weights(model)):
                still.append(step)

        if how == "steps":
            for number, step in enumerate(guard.steps(batches(STEPS))):
                for batch in step:
                    body(number, batch)
        else:
            for number, batch in enumerate(batches(STEPS)):
                body(number, batch)
    return model, still


@pytest.mark.parametrize("how", ["continue", "steps", "skip"])
def test_a_skipped_batch_costs_no_healthy_step(how: str, tmp_path: Path) -> None:
    bare, _ = run(tmp_path, how=how, enabled=False)
    model, still = run(tmp_path, how=how)
    assert still == []
    assert discarded_steps(tmp_path) == []
    assert all(
        float((a - b).abs().max()) < 1e-5
        for a, b in zip(weights(bare), weights(model), strict=True)
    )


@pytest.mark.parametrize("mode", ["observe", "protect"])
@pytest.mark.parametrize("how", ["steps", "skip"])
def test_a_skipped_step_has_a_record_and_a_number(how: str, mode: str, tmp_path: Path) -> None:
    run(tmp_path, how=how, mode=mode)
    block = journal_of(tmp_path)
    assert block.step.tolist() == list(range(STEPS))
    assert np.flatnonzero(np.isnan(block.column("loss").values)).tolist() == [BAD]
    assert set(block.column("tokens").values.tolist()) == {36.0}


def test_a_batch_left_out_in_the_step_loop_is_not_merged_with_the_next(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    numbers = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for step in guard.steps(batches(8)):
            numbers.append(step.number)
            for batch in step:
                loss = loss_of(model, batch)
                guard.record(loss=loss, tokens=batch.numel())
                if len(numbers) == 4:
                    continue
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    assert numbers == list(range(8))
    assert journal_of(tmp_path).column("tokens").values.tolist() == [36.0] * 8


def test_two_losses_before_one_backward_are_one_step(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, state={"scaler": scaler}) as guard:
        for batch in batches(6):
            one, other = loss_of(model, batch), loss_of(model, batch.flip(0))
            guard.record(loss=one)
            guard.record(loss=other)
            scaler.scale(one + other).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert len(losses(tmp_path)) == 6


def test_gradients_in_the_memory_of_used_ones_are_not_taken_for_them(tmp_path: Path) -> None:
    """One micro-batch and a clip, then two: as many writes to gradients at the same addresses."""
    model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(8)))
    optimizer = adamw(model.parameters())
    counts = [1 + step % 2 for step in range(200)]
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for count in counts:
            for _ in range(count):
                loss = model(torch.randn(4, 6)).square().mean() / count
                loss.backward()
                guard.record(loss=loss)
            if count == 1:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
    assert len(losses(tmp_path)) == len(counts)


def test_data_positions_go_on_from_epoch_to_epoch(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for _ in range(3):
            for step in guard.steps(batches(5)):
                for batch in step:
                    loss = loss_of(model, batch)
                    guard.record(loss=loss)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    assert journal_of(tmp_path).data_position.tolist() == list(range(15))
