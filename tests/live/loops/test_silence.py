"""A guard that does nothing, or sees something, says so in the log; otherwise it is silent."""

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.launch import in_child, log_of_trimtab
from tests.kit.tiny import batches, loss_of
from tests.kit.user_loop import Run, adamw, warnings_of, watching
from torch import nn

from trimtab.journal import writer
from trimtab.journal.writer import JournalLimits


def test_steps_that_nobody_records_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, "protect") as run:
        for batch in batches(40):
            run.optimizer.zero_grad()
            loss_of(run.model, batch).backward()
            run.optimizer.step()
        assert any("record" in sentence for sentence in warnings_of(caplog))


def test_records_without_a_step_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, "protect") as run:
        run.train(10)
        other = adamw(run.model.parameters())  # a new stage, a new optimizer
        caplog.clear()
        Run(run.guard, run.model, other).train(50, skip=range(10))
        assert any("optimizer" in sentence for sentence in warnings_of(caplog))


class SharpnessAware(torch.optim.Optimizer):
    """SAM as it is usually written: two methods, and `step` is never called on it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-1})

    @torch.no_grad()
    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["before"] = parameter.clone()
            parameter.add_(0.05 * parameter.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["before"])
            parameter.sub_(0.1 * parameter.grad)
        self.zero_grad()


def test_an_optimizer_whose_step_is_never_called_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, make=SharpnessAware) as run:
        caplog.clear()
        for batch in batches(40):
            loss = loss_of(run.model, batch)
            run.guard.record(loss=loss)
            loss.backward()
            run.optimizer.first_step()
            loss_of(run.model, batch).backward()
            run.optimizer.second_step()
        assert any("optimizer" in sentence for sentence in warnings_of(caplog))


def test_a_run_that_does_not_clip_is_not_told_that_it_clips(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(1, 1, bias=False)
    norms = [1.2000001, 0.7, 0.9, 1.4999999, 0.8, 1.1, 0.6, 2.3456, 1.3, 1.9]
    with watching(tmp_path, model=model) as run:
        for norm in norms * 3:  # two of them happen to be round; larger ones follow
            run.guard.record(loss=1.0)
            model.weight.grad = torch.full((1, 1), norm)
            run.optimizer.step()
    assert not [sentence for sentence in warnings_of(caplog) if "clip_grad_norm_" in sentence]


def journal_into_a_full_disk(folder: Path) -> list[str]:
    writer.JOURNAL_LIMITS = JournalLimits(close_seconds=0.5)  # in a process of its own
    with log_of_trimtab() as said, watching(folder) as run:
        run.train(5)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        run.train(60, skip=range(5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return said


def test_a_journal_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    # In a child: a limit on the size of files is as good as a full disk.
    said = in_child(journal_into_a_full_disk, tmp_path)
    assert any("journal" in sentence for sentence in said)
