"""The Lightning Trainer in `recover`: an undo restores the weights, and the Trainer goes on."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from tests.kit.lightning import Module, Run, in_settings, watched
from tests.kit.tiny import assert_same_bits, batches, journal_of
from torch.utils.data import DataLoader

from trimtab.core.config import Config

SOON = Config().override({"recover.snapshot_every": 5})


class Flips(L.Callback):  # type: ignore[misc]
    """Flips a high bit of a weight in memory, once, and remembers what the Trainer counts."""

    def __init__(self, step: int, ranks: tuple[int, ...] = (0,)) -> None:
        self._step = step
        self._ranks = ranks
        self.counts: list[tuple[int, int, float]] = []
        """Step, epoch and learning rate after each batch."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.counts.append((trainer.global_step, trainer.current_epoch, rate))
        is_due = trainer.global_step == self._step and not trainer.fit_loop._should_accumulate()
        if is_due and trainer.global_rank in self._ranks:
            weight = pl_module.model.head.weight.detach()
            local = weight.to_local() if hasattr(weight, "to_local") else weight
            local.numpy().view(np.uint32)[1, 1] ^= np.uint32(1 << 30)


def undone_in(folder: Path) -> list[int]:
    """Return the updates that each undo has lost."""
    events = journal_of(folder).events
    return [event.facts["updates_lost"] for event in events if event.kind == "undo"]


@in_settings(("16-mixed", 2))
def test_a_healthy_run_and_one_with_a_flipped_bit(
    precision: str, accumulate: int, tmp_path: Path
) -> None:
    run = Run(precision=precision, accumulate=accumulate, steps=20)
    protected, _ = run.fit([watched(tmp_path / "protect", "protect")])
    healthy, _ = run.fit([watched(tmp_path / "healthy", "recover", config=SOON)])
    assert_same_bits(protected, healthy)
    flipped, _ = run.fit([watched(tmp_path / "flipped", "recover", config=SOON), Flips(12)])
    assert all(bool(torch.isfinite(parameter).all()) for parameter in flipped.parameters)
    (lost,) = undone_in(tmp_path / "flipped")
    assert lost <= 12


class Evaluates(Module):
    """Evaluates at the end of each epoch."""

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.model(batch).square().mean())


def test_counters_schedule_data_and_evaluations_go_on(tmp_path: Path) -> None:
    data: Any = batches(9)
    run = Run(steps=30, make=Evaluates, trainer={"max_epochs": 4})
    loaders = {
        "train_dataloaders": DataLoader(data, batch_size=None),
        "val_dataloaders": DataLoader(data[:2], batch_size=None),
    }
    plain, flips = Flips(-1), Flips(15)
    run.fit([plain], **loaders)
    run.fit([watched(tmp_path, "recover", config=SOON), flips], **loaders)
    assert len(undone_in(tmp_path)) == 1
    assert flips.counts == plain.counts
    block = journal_of(tmp_path)
    assert block.step.tolist() == list(range(30))
    assert block.data_position.tolist() == list(range(30))  # without those of evaluations


def test_an_average_of_the_weights_is_restored_too(tmp_path: Path) -> None:
    average = getattr(L.pytorch.callbacks, "EMAWeightAveraging", None)
    if average is None:
        pytest.skip("Lightning < 2.5 has no such average")
    own = average(decay=0.9)
    flips = Flips(17)  # before the average is updated
    trained, _ = Run(steps=30).fit([watched(tmp_path, "recover", config=SOON), flips, own])
    assert len(undone_in(tmp_path)) == 1
    assert all(bool(torch.isfinite(parameter).all()) for parameter in trained.parameters)
    assert all(float(parameter.abs().max()) < 100 for parameter in trained.parameters)


class ByHand(Module):
    """Optimizes by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def test_manual_optimization_recovers_too(tmp_path: Path) -> None:
    run = Run(make=ByHand, clip=None, steps=25)
    trained, _ = run.fit([watched(tmp_path, "recover", config=SOON), Flips(16)])
    assert len(undone_in(tmp_path)) == 1
    assert all(bool(torch.isfinite(parameter).all()) for parameter in trained.parameters)
    assert len(journal_of(tmp_path)) == 25


def test_the_trainer_has_its_own_methods_again_after_an_exception(tmp_path: Path) -> None:
    class Breaks(Module):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if batch_idx == 3:
                trainers.append(self.trainer)
                raise ValueError("a bug of the user")
            return super().training_step(batch, batch_idx)

    trainers: list[L.Trainer] = []
    callback = watched(tmp_path, "recover", config=SOON)
    with pytest.raises(ValueError, match="a bug of the user"):
        Run(make=Breaks).fit([callback])
    assert "batch_to_device" not in vars(trainers[0].strategy)
    assert "save_checkpoint" not in vars(trainers[0])
    Run().fit([callback])
    assert journal_of(tmp_path).step.tolist() == [0, 1, 2, *range(8)]


def test_a_schedule_of_the_accumulation_goes_on_after_an_undo(tmp_path: Path) -> None:
    """Other sizes of the steps in each epoch, and an undo over the change."""
    counts = []
    for name, more in (("bare", []), ("undone", [watched(tmp_path, "recover", config=SOON)])):
        counter = Flips(23 if name == "undone" else -1)
        schedule = L.pytorch.callbacks.GradientAccumulationScheduler({0: 1, 1: 3})
        settings = {"max_epochs": 3, "max_steps": -1, "accumulate_grad_batches": 1}
        run = Run(steps=20, trainer=settings)
        _, trainer = run.fit([*more, counter, schedule])
        counts.append((trainer.global_step, counter.counts))
    assert len(undone_in(tmp_path)) == 1
    assert counts[0] == counts[1]
