"""A rollback that a person asks for: the next launch does all of it, or says why it does not."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from typer.testing import CliRunner

import trimtab
from trimtab.cli.main import app
from trimtab.journal import AUDIT_EVENT, RunDirectory
from trimtab.journal.rollback import Rollback

DATA = batches(80)


def ask(run: Path, *options: object) -> str:
    arguments = ["rollback", str(run), *map(str, options), "--yes"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def launch(
    run: Path,
    until: int,
    *,
    mode: str = "protect",
    resumes: bool = True,
    lr_factor: float = 1.0,
    each: Callable[[Any, int], None] = lambda guard, step: None,
) -> list[torch.Tensor]:
    """Train a run up to a step, from where it resumes; it saves every 10 steps."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    checkpoints = trimtab.Checkpoints(
        model, optimizer, scheduler=schedule, run_dir=run, every_steps=10, keep=9
    )
    first = checkpoints.resume().step if resumes else 0
    guard = trimtab.watch(
        *(model, optimizer), run_dir=run, mode=mode, checkpoints=checkpoints, observer=False
    )
    with guard:
        for step in guard.steps(DATA[:until]):
            each(guard, step.number)
            (batch,) = step
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    assert first == 0 or step.number == until - 1
    return [parameter.detach().clone() for parameter in model.parameters()]


def steps_of(run: Path) -> list[int]:
    steps: list[int] = journal_of(run).step.tolist()
    return steps


def findings(run: Path) -> list[str]:
    events = [e for e in journal_of(run).events if e.kind == AUDIT_EVENT]
    return [sentence for event in events for sentence in event.facts["findings"]]


def test_the_next_launch_does_all_of_it_and_later_ones_keep_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launch(tmp_path, 45)
    options = ("--to", 25, "--skip", "30:33", "--lr-factor", 0.5, "--without-source", "web")
    price = ask(tmp_path, *options)
    assert "step-00000020, unproven" in price
    assert "lost     25 updates" in price
    before = journal_of(tmp_path)
    left_out: list[tuple[str, ...]] = []
    with caplog.at_level(logging.INFO, "trimtab"):
        launch(tmp_path, 40, each=lambda guard, step: left_out.append(guard.without_sources))
    assert "`trimtab rollback` asks for it" in caplog.text
    assert set(left_out) == {("web",)}
    assert findings(tmp_path) == []
    block = journal_of(tmp_path)
    again = block[len(before) :]
    assert again.step.tolist() == again.data_position.tolist() == list(range(20, 40))
    assert again.step[again.column("discarded").values == 1.0].tolist() == [30, 31, 32]
    planned = before.column("lr").values[20:40]
    assert again.column("lr").values.tolist() == (planned * 0.5).tolist()

    # It is taken once: the next launch goes on from the newest checkpoint, with the same changes.
    launch(tmp_path, 50)
    third = journal_of(tmp_path)[len(block) :]
    assert third.step.tolist() == list(range(40, 50))
    assert np.allclose(third.column("lr").values, 0.5e-2 * 0.99 ** np.arange(40, 50))
    assert findings(tmp_path) == []
    # What is not named stays; a factor of 1 ends it.
    ask(tmp_path, "--to", 20, "--lr-factor", 1)
    request = Rollback.read(RunDirectory(tmp_path).home)
    assert request is not None
    assert request.conditions.lr_factor == 1.0
    assert len(request.conditions.bad_data) == 3
    assert request.conditions.without_sources == ("web",)


def test_the_factor_is_that_of_a_lower_schedule_bit_by_bit(tmp_path: Path) -> None:
    """And a rollback without one gives the bits of the run that never left."""
    whole = launch(tmp_path, 30)
    ask(tmp_path, "--to", 10)
    for one, other in zip(whole, launch(tmp_path, 30), strict=True):
        assert torch.equal(one, other)
