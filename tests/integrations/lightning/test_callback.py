"""What a user does with the callback besides training in a straight line."""

import logging
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from tests.kit.lightning import Module, Run, watched
from tests.kit.tiny import assert_same_bits, batches, journal_of
from torch.utils.data import DataLoader

import trimtab
from trimtab.integrations.lightning import TrimtabCallback

TIGHT = 1e-3


class ClipsItself(Module):
    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters(), TIGHT)


def test_the_norm_is_that_before_clipping_however_the_user_clips(tmp_path: Path) -> None:
    by_value = Run(clip=TIGHT, trainer={"gradient_clip_algorithm": "value"})
    for name, run in {"by value": by_value, "itself": Run(clip=None, make=ClipsItself)}.items():
        bare, _ = run.fit()
        seen, _ = run.fit([watched(tmp_path / name)])
        assert_same_bits(bare, seen)
        norms = journal_of(tmp_path / name).column("grad_norm").values
        assert (norms > 0.1).all(), name


def test_the_precision_plugin_is_as_before_after_training(tmp_path: Path) -> None:
    _, trainer = Run().fit([watched(tmp_path)])
    assert "clip_grad_by_norm" not in vars(trainer.precision_plugin)


class Breaks(Module):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            raise ValueError("a bug of the user")


def test_after_an_exception_the_same_callback_trains_again_and_records_once(tmp_path: Path) -> None:
    callback = watched(tmp_path)
    with pytest.raises(ValueError, match="a bug of the user"):
        Run(make=Breaks).fit([callback])
    assert callback.guard is None
    Run().fit([callback])
    block = journal_of(tmp_path)
    assert block.step.tolist() == [0, 1, 2, 3, *range(8)]


def test_tokens_that_cannot_be_counted_cost_only_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    bare, _ = run.fit()
    seen, _ = run.fit([TrimtabCallback(tmp_path, tokens=lambda batch: batch["input_ids"].numel())])
    assert_same_bits(bare, seen)
    assert np.isfinite(journal_of(tmp_path).column("loss").values).all()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "tokens" in errors[0].getMessage()


def test_anomaly_detection_is_reported_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Run(trainer={"detect_anomaly": True}, steps=2).fit([watched(tmp_path, "protect")])
    assert any("detect_anomaly" in record.getMessage() for record in caplog.records)


class Evaluates(Module):
    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", torch.tensor(3.0 + self.trainer.global_step))


def test_evaluation_losses_are_journalled_but_not_that_of_the_sanity_check(tmp_path: Path) -> None:
    run = Run(make=Evaluates, trainer={"val_check_interval": 4, "num_sanity_val_steps": 1})
    run.fit([watched(tmp_path)], val_dataloaders=DataLoader(batches(2), batch_size=None))  # type: ignore[arg-type]
    block = journal_of(tmp_path)
    column = block.column("eval_loss")
    assert column.values[column.present].tolist() == [7.0]
    assert [event.step for event in block.events if event.kind == "evaluation"] == [4, 8]


class Manual(Module):
    """Two optimizers that step in turn, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        parameters = list(self.parameters())
        return [torch.optim.SGD(part, lr=1e-2) for part in (parameters[:5], parameters[5:])]


def test_manual_optimization_with_two_optimizers(tmp_path: Path) -> None:
    run = Run(make=Manual, clip=None, steps=16)
    bare, _ = run.fit()
    seen, _ = run.fit([watched(tmp_path)])
    assert_same_bits(bare, seen)
    losses = journal_of(tmp_path).column("loss").values
    np.testing.assert_allclose(losses, seen.losses, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning has a few about such a module
def test_a_trainer_without_optimizers_is_left_alone(tmp_path: Path) -> None:
    class Frozen(Module):
        def configure_optimizers(self) -> None:
            return None

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:  # type: ignore[override]
            return None

    callback = watched(tmp_path)
    trainer = L.Trainer(max_epochs=1, barebones=True, accelerator="cpu", callbacks=[callback])
    trainer.fit(Frozen(), DataLoader(batches(2), batch_size=None))  # type: ignore[arg-type]
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_second_fit_is_no_resume_that_went_wrong(tmp_path: Path) -> None:
    """Lightning makes new optimizers for it: nothing was to be restored."""
    torch.manual_seed(7)
    module = Module()
    data: Any = DataLoader(batches(10), batch_size=None)  # type: ignore[arg-type]
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watched(tmp_path)],
    )
    trainer.fit(module, data)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, data)
    assert trainer.global_step == 20
    block = journal_of(tmp_path)
    assert [int(step) for step in block.step] == list(range(20))
    assert not block.column("resume_audit").present.any()
    assert [event.step for event in block.events if event.kind == "planned change"] == [10]
    assert not trimtab.diagnose(tmp_path).incidents
