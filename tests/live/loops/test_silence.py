"""A guard that does nothing, or sees something, says so in the log; otherwise it is silent."""

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.launch import in_child, log_of_trimtab
from tests.kit.observing import with_observer  # noqa: F401
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import adamw, losses, train, warnings_of
from tests.live.loops.foreign_optimizers import SharpnessAware
from torch import nn

import trimtab
from trimtab.journal import writer
from trimtab.journal.writer import JournalLimits

watch: Any = trimtab.watch


def test_steps_that_nobody_records_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect"):
        for batch in batches(40):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        assert any("record" in sentence for sentence in warnings_of(caplog))


def test_records_without_a_step_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        train(guard, model, optimizer, 10)
        other = adamw(model.parameters())  # a new stage, a new optimizer
        caplog.clear()
        train(guard, model, other, 50, skip=range(10))
        assert any("optimizer" in sentence for sentence in warnings_of(caplog))


def test_an_optimizer_whose_step_is_never_called_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizer = SharpnessAware(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        caplog.clear()
        for batch in batches(40):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            loss.backward()
            optimizer.first_step()
            loss_of(model, batch).backward()
            optimizer.second_step()
        assert any("optimizer" in sentence for sentence in warnings_of(caplog))


def test_a_healthy_run_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        train(guard, model, optimizer, 60)
    # A step may well stall on a busy machine.
    assert [sentence for sentence in warnings_of(caplog) if "stalled" not in sentence] == []


def test_a_run_that_does_not_clip_is_not_told_that_it_clips(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    norms = [1.2000001, 0.7, 0.9, 1.4999999, 0.8, 1.1, 0.6, 2.3456, 1.3, 1.9]
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for norm in norms * 3:  # two of them happen to be round; larger ones follow
            guard.record(loss=1.0)
            model.weight.grad = torch.full((1, 1), norm)
            optimizer.step()
    assert not [sentence for sentence in warnings_of(caplog) if "clip_grad_norm_" in sentence]


def journal_into_a_full_disk(folder: Path) -> list[str]:
    writer.JOURNAL_LIMITS = JournalLimits(close_seconds=0.5)  # in a process of its own
    model = make_model()
    optimizer = adamw(model.parameters())
    with (
        log_of_trimtab() as said,
        trimtab.watch(model, optimizer, run_dir=folder) as guard,
    ):
        train(guard, model, optimizer, 5)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        train(guard, model, optimizer, 60, skip=range(5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return said


def test_a_journal_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    # In a child: a limit on the size of files is as good as a full disk.
    said = in_child(journal_into_a_full_disk, tmp_path)
    assert any("journal" in sentence for sentence in said)


def spike(guard: Any, model: Any, optimizer: Any) -> None:
    """Sixty healthy steps, a NaN, and then some."""
    train(
        guard,
        model,
        optimizer,
        90,
        record=lambda step, loss: {"loss": loss * (float("nan") if step == 60 else 1.0)},
    )


@pytest.mark.usefixtures("with_observer")
def test_an_incident_is_logged_listed_and_handed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    handed: list[Any] = []
    with watch(model, optimizer, run_dir=tmp_path, on_incident=handed.append) as guard:
        spike(guard, model, optimizer)
    assert len(guard.incidents) >= 1
    assert handed
    sentences = warnings_of(caplog)
    assert any("60" in sentence for sentence in sentences)
    assert len(losses(tmp_path)) == 90


@pytest.mark.usefixtures("with_observer")
def test_a_callback_that_raises_does_not_end_the_run(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())

    def fail(incident: Any) -> None:
        raise RuntimeError("the pager is down")

    with watch(model, optimizer, run_dir=tmp_path, on_incident=fail) as guard:
        spike(guard, model, optimizer)
    assert len(losses(tmp_path)) == 90
