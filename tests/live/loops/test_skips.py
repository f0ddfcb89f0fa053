"""Steps that the user skips: what was recorded for them ends with them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.kit.tiny import batches, journal_of, loss_of
from tests.kit.user_loop import (
    NAN,
    Run,
    are_equal,
    column,
    discarded_steps,
    largest_difference,
    losses,
    watching,
    weights,
)

BAD = 6
STEPS = 12


def skip_bad_batches(run_dir: Path, *, how: str, mode: str, enabled: bool = True) -> Run:
    """The user looks at the loss and leaves a NaN batch out; every other step moves the weights."""
    with watching(run_dir, mode, enabled=enabled) as run:

        def body(step: int, batch: torch.Tensor) -> None:
            loss = loss_of(run.model, batch) * (NAN if step == BAD else 1.0)
            run.guard.record(loss=loss, tokens=batch.numel())
            if not torch.isfinite(loss):
                if how == "skip" and enabled:
                    run.guard.skip()
                return
            run.optimizer.zero_grad()
            loss.backward()
            before = weights(run.model)
            run.optimizer.step()
            assert not are_equal(before, weights(run.model))

        if how == "steps":
            for number, step in enumerate(run.guard.steps(batches(STEPS))):
                for batch in step:
                    body(number, batch)
        else:
            for number, batch in enumerate(batches(STEPS)):
                body(number, batch)
    return run


@pytest.mark.parametrize("mode", ["observe", "protect"])
@pytest.mark.parametrize("how", ["continue", "steps", "skip"])
def test_a_skipped_batch_costs_no_healthy_step(how: str, mode: str, tmp_path: Path) -> None:
    bare = skip_bad_batches(tmp_path, how=how, mode=mode, enabled=False)
    watched = skip_bad_batches(tmp_path, how=how, mode=mode)
    assert largest_difference(weights(bare.model), weights(watched.model)) < 1e-5
    assert mode == "observe" or discarded_steps(tmp_path) == []
    if how != "continue":  # the step has a record and a number
        block = journal_of(tmp_path)
        assert block.step.tolist() == list(range(STEPS))
        assert np.flatnonzero(np.isnan(block.column("loss").values)).tolist() == [BAD]
        assert set(column(tmp_path, "tokens")) == {36.0}


def test_a_batch_left_out_in_the_step_loop_is_not_merged_with_the_next(tmp_path: Path) -> None:
    numbers = []
    with watching(tmp_path) as run:
        for step in run.guard.steps(batches(8)):
            numbers.append(step.number)
            for batch in step:
                if len(numbers) == 4:
                    loss = loss_of(run.model, batch)
                    run.guard.record(loss=loss, tokens=batch.numel())
                    continue
                run.step(batch, tokens=batch.numel())
    assert numbers == list(range(8))
    assert column(tmp_path, "tokens") == [36.0] * 8


def test_two_losses_before_one_backward_are_one_step(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(tmp_path, state={"scaler": scaler}) as run:
        for batch in batches(6):
            one, other = loss_of(run.model, batch), loss_of(run.model, batch.flip(0))
            run.guard.record(loss=one)
            run.guard.record(loss=other)
            scaler.scale(one + other).backward()
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()
    assert len(losses(tmp_path)) == 6


def test_gradients_in_the_memory_of_used_ones_are_not_taken_for_them(tmp_path: Path) -> None:
    """One micro-batch and a clip, then two: as many writes to gradients at the same addresses."""
    model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(8)))
    counts = [1 + step % 2 for step in range(200)]
    with watching(tmp_path, model=model) as run:
        for count in counts:
            for _ in range(count):
                loss = model(torch.randn(4, 6)).square().mean() / count
                loss.backward()
                run.guard.record(loss=loss)
            if count == 1:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert len(losses(tmp_path)) == len(counts)


def test_data_positions_go_on_from_epoch_to_epoch(tmp_path: Path) -> None:
    with watching(tmp_path) as run:
        for _ in range(3):
            for step in run.guard.steps(batches(5)):
                run.step(*step)
    assert journal_of(tmp_path).data_position.tolist() == list(range(15))
