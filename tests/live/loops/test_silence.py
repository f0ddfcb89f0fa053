"""A guard that does nothing, or sees something, says so in the log; otherwise it is silent."""

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.launch import in_child, log_of_trimtab
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import Run, adamw, poison, sgd, warnings_of, watching
from torch import nn

import trimtab
from trimtab.journal import writer
from trimtab.journal.writer import JournalLimits


def test_steps_that_nobody_records_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trimtab")
    with watching(tmp_path, "protect") as run:
        for step, batch in enumerate(batches(40)):
            run.optimizer.zero_grad()
            loss_of(run.model, batch).backward()
            if step == 30:
                poison(run.optimizer)
            run.optimizer.step()
        assert any("record" in sentence for sentence in warnings_of(caplog))
    assert "trimtab: step 30 discarded, grad norm not finite" in warnings_of(caplog)
    assert "40 updates, none recorded, as guard.record(loss=...) was never called" in caplog.text
    assert ", 1 step discarded; " in caplog.text


def test_records_without_a_step_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, "protect") as run:
        run.train(10)
        other = adamw(run.model.parameters())  # a new stage, a new optimizer
        caplog.clear()
        Run(run.guard, run.model, other).train(50, skip=range(10))
        assert any("optimizer" in sentence for sentence in warnings_of(caplog))


def test_losses_recorded_after_the_step_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, model=nn.Linear(4, 1)) as run:  # its loss is near to its parameters
        for batch in torch.randn(40, 8, 4):
            loss = nn.functional.mse_loss(run.model(batch), batch[:, :1])
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.guard.record(loss=loss)
    assert any("losses came one step late" in sentence for sentence in warnings_of(caplog))


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


def start_lines(folder: Path, model: nn.Module, optimizer: Any, caplog: Any) -> list[str]:
    trimtab.watch(model, optimizer, run_dir=folder, mode="protect").close()
    return warnings_of(caplog)


def test_trained_weights_in_no_watched_optimizer_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    embedding, others = sgd(model.embed.parameters()), sgd([*model.parameters()][1:])
    num_all = sum(p.numel() for p in model.parameters())
    num_left = num_all - model.embed.weight.numel()
    (said,) = start_lines(tmp_path / "one", model, embedding, caplog)
    assert f"{num_left:,} of the model's {num_all:,} trainable parameters, such as " in said
    assert "are in no optimizer given to watch, so they are not protected" in said
    caplog.clear()
    assert not start_lines(tmp_path / "both", model, [embedding, others], caplog)


def test_an_optimizer_of_another_model_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (said,) = start_lines(tmp_path, make_model(), sgd(make_model().parameters()), caplog)
    assert "none of the optimizer's" in said


def tied() -> nn.Module:
    model = make_model()
    model.head.weight = model.embed.weight
    return model


def half_frozen() -> nn.Module:
    model = make_model()
    model.embed.requires_grad_(False)
    return model


@pytest.mark.parametrize("make", [tied, half_frozen, lambda: nn.Identity()])
def test_weights_that_are_tied_frozen_or_not_there_are_no_warning(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    trained = [p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.ones(3))]
    assert not start_lines(tmp_path, model, sgd(trained), caplog)


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
