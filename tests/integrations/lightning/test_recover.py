"""A run of the Lightning Trainer that goes back has the bits of the run that never left."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from tests.kit.lightning import Module, Run, in_settings, watched
from tests.kit.tiny import assert_same_bits, batches, journal_of
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trimtab.core.config import Config
from trimtab.integrations.lightning import TrimtabCallback
from trimtab.integrations.trainers.lightning_recovery import LoopCounters

MANUAL = Config().override({"ladder.enabled": False, "recover.snapshot_every": 5})


class Flips(L.Callback):  # type: ignore[misc]
    """Damages a weight after some steps, and orders the way back."""

    def __init__(
        self, watcher: TrimtabCallback, back: dict[int, int], damage: bool = True, **order: Any
    ) -> None:
        self._watcher = watcher
        self._back = dict(back)
        self._damage = damage
        self._order = order
        self.steps: list[int] = []
        """The step after each batch, as the Trainer counts."""
        self.epochs: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.steps.append(trainer.global_step)
        self.epochs.append(trainer.current_epoch)
        to = self._back.get(trainer.global_step)
        if to is None or trainer.fit_loop._should_accumulate():
            return
        del self._back[trainer.global_step]
        guard = self._watcher.guard
        assert guard is not None
        if self._damage:
            with torch.no_grad():
                next(iter(pl_module.parameters())).view(-1)[3] *= -(2.0**40)
        guard.rollback(to=to, **self._order)


def same_counters(one: LoopCounters, other: LoopCounters) -> None:
    """All counters of the loops, and what other callbacks keep, are equal."""
    pairs = zip(tree_leaves(one.state_dict()), tree_leaves(other.state_dict()), strict=True)
    for first, second in pairs:
        assert torch.equal(first, second) if torch.is_tensor(first) else first == second


def assert_exact(
    run: Run,
    folder: Path,
    back: dict[int, int],
    others: Callable[[], list[L.Callback]] = list,
    **fit: Any,
) -> Flips:
    """Train twice, once with the way back, and compare all that is left of both runs."""
    plain = watched(folder / "straight", "recover", config=MANUAL)
    straight, first = run.fit([*others(), plain], **fit)
    callback = watched(folder / "back", "recover", config=MANUAL)
    flips = Flips(callback, back)
    returned, trainer = run.fit([*others(), callback, flips], **fit)
    assert_same_bits(straight, returned)
    same_counters(LoopCounters(first, plain), LoopCounters(trainer, callback))
    assert max(journal_of(folder / "back").attempt) == len(back)
    assert trainer.global_step == run.steps
    return flips


@in_settings(("32-true", 1), ("16-mixed", 2))
def test_a_flipped_weight(precision: str, accumulate: int, tmp_path: Path) -> None:
    run = Run(precision=precision, accumulate=accumulate, steps=18)
    assert_exact(run, tmp_path, {12: 5, 16: 15})


class Noisy(Dataset[torch.Tensor]):
    """Draws random numbers in the training process for every batch."""

    def __init__(self, size: int = 9) -> None:
        self._data = batches(size)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self._data[index] + torch.randint(0, 32, (4, 9))) % 32


class Stream(IterableDataset[torch.Tensor]):
    """The same without a length: the Trainer fetches one batch ahead."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        noisy = Noisy()
        return (noisy[index] for index in range(9))


EPOCHS = {"max_epochs": 5}


@pytest.mark.parametrize(
    ("kind", "accumulate"),
    [
        ("shuffled", 1),
        ("stream", 2),
        pytest.param("shuffled", 2, marks=pytest.mark.slow),
        pytest.param("stream", 1, marks=pytest.mark.slow),
    ],
)
def test_epochs_are_gone_back_over(kind: str, accumulate: int, tmp_path: Path) -> None:
    data = Noisy() if kind == "shuffled" else Stream()
    loader: Any = DataLoader(data, batch_size=None, shuffle=True if kind == "shuffled" else None)
    per_epoch = -(-9 // accumulate)
    run = Run(steps=3 * per_epoch + 2, accumulate=accumulate, trainer=EPOCHS)
    late = 3 * per_epoch
    back = {per_epoch + 1: 5 if accumulate == 1 else 0, late: 10, late + 1: late - 1}
    flips = assert_exact(run, tmp_path, back, train_dataloaders=loader)
    assert 0 in flips.epochs[flips.epochs.index(1) :]


@pytest.mark.slow
def test_new_loaders_in_every_epoch(tmp_path: Path) -> None:
    class Loads(Module):
        def train_dataloader(self) -> Any:
            return DataLoader(Noisy(), batch_size=None, shuffle=True)

    reloads = {"max_epochs": 5, "reload_dataloaders_every_n_epochs": 1}
    run = Run(steps=30, make=Loads, trainer=reloads)
    assert_exact(run, tmp_path, {11: 5, 27: 15, 28: 25}, train_dataloaders=None)


@pytest.mark.slow
def test_loaders_with_workers(tmp_path: Path) -> None:
    loader = DataLoader(Noisy(), batch_size=None, shuffle=True, num_workers=2)
    run = Run(steps=20, trainer={"max_epochs": 5})
    assert_exact(run, tmp_path, {11: 5, 18: 15}, train_dataloaders=loader)


class Evaluates(Module):
    """Evaluates at the end of an epoch, and logs what a scheduler and EarlyStopping go by."""

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.model(batch).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


def test_validation_a_plateau_scheduler_and_early_stopping_go_back_too(tmp_path: Path) -> None:
    run = Run(steps=30, make=Evaluates, trainer={"max_epochs": 4})
    assert_exact(
        run,
        tmp_path,
        {19: 15, 29: 10},
        lambda: [L.pytorch.callbacks.EarlyStopping("val_loss", patience=9, mode="max")],
        train_dataloaders=DataLoader(Noisy(), batch_size=None, shuffle=True),
        val_dataloaders=DataLoader(batches(2), batch_size=None),  # type: ignore[arg-type]
    )


def test_an_average_of_the_weights_goes_back_too(tmp_path: Path) -> None:
    average = getattr(L.pytorch.callbacks, "EMAWeightAveraging", None)
    if average is None:
        pytest.skip("Lightning < 2.5 has no such average")
    assert_exact(Run(steps=20), tmp_path, {17: 10}, lambda: [average(decay=0.9)])


def test_skipped_batches_are_as_if_the_data_never_had_them(tmp_path: Path) -> None:
    data = batches(30)
    without = data[:10] + data[14:]
    run = Run(steps=20, accumulate=1)
    straight, _ = run.fit(
        [watched(tmp_path / "straight", "recover", config=MANUAL)],
        train_dataloaders=DataLoader(without, batch_size=None),  # type: ignore[arg-type]
    )
    callback = watched(tmp_path / "back", "recover", config=MANUAL)
    returned, _ = run.fit(
        [callback, Flips(callback, {14: 10}, skip=range(10, 14))],
        train_dataloaders=DataLoader(data, batch_size=None),  # type: ignore[arg-type]
    )
    assert_same_bits(straight, returned)


@pytest.mark.parametrize("skip", [range(15, 17), range(16, 18)], ids=["middle", "end of epoch"])
def test_an_epoch_with_skipped_batches_ends_where_its_data_ends(
    skip: range, tmp_path: Path
) -> None:
    """Validation runs at its end, and the next epoch begins with its own first batch."""
    callback = watched(tmp_path, "recover", config=MANUAL)
    flips = Flips(callback, {18: 15}, skip=skip)
    ends: list[tuple[int, int]] = []

    class Ends(Evaluates):
        def on_validation_epoch_end(self) -> None:
            ends.append((self.trainer.current_epoch, self.trainer.global_step))

    Run(steps=60, make=Ends, trainer={"max_epochs": 3, "num_sanity_val_steps": 0}).fit(
        [callback, flips],
        train_dataloaders=DataLoader(Noisy(), batch_size=None),
        val_dataloaders=DataLoader(batches(2), batch_size=None),  # type: ignore[arg-type]
    )
    assert ends == [(0, 9), (1, 18), (1, 16), (2, 25)]


def test_gradients_take_no_room_in_snapshots_and_hooks_of_the_user_see_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bool] = []

    class Looks(Module):
        def on_before_zero_grad(self, optimizer: Any) -> None:
            seen.append(all(p.grad is not None for p in self.parameters()))

    Run(steps=12, make=Looks).fit([watched(tmp_path, "recover", config=MANUAL)])
    assert seen == [False] + [True] * 11
    assert not [r for r in caplog.records if "gradients between two steps" in r.getMessage()]


class Rows(Logger):  # type: ignore[misc]
    """Keeps what is logged."""

    name = version = "rows"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, float]] = []

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if "loss" in metrics and step is not None:
            self.rows.append((step, metrics["loss"]))


def test_each_attempt_logs_its_rows_under_its_own_steps(tmp_path: Path) -> None:
    class Logs(Module):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    logger = Rows()
    callback = watched(tmp_path, "recover", config=MANUAL)
    run = Run(steps=14, make=Logs, trainer={"logger": logger, "log_every_n_steps": 1})
    trained, _ = run.fit([callback, Flips(callback, {12: 5})])
    assert [step for step, _ in logger.rows] == [*range(12), *range(5, 14)]
    assert [loss for _, loss in logger.rows] == pytest.approx(trained.losses)


class ByHand(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def test_what_cannot_go_back_is_protected_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = watched(tmp_path, "recover")
    Run(make=ByHand, clip=None).fit([callback])
    assert any("falls back to 'protect'" in record.getMessage() for record in caplog.records)
    assert len(journal_of(tmp_path)) == 8


def test_the_trainer_has_its_own_fetcher_again_after_an_exception(tmp_path: Path) -> None:
    class Breaks(Module):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if batch_idx == 3:
                raise ValueError("a bug of the user")
            return super().training_step(batch, batch_idx)

    callback = watched(tmp_path, "recover", config=MANUAL)
    with pytest.raises(ValueError, match="a bug of the user"):
        Run(make=Breaks).fit([callback])
    Run().fit([callback])
    assert journal_of(tmp_path).step.tolist() == [0, 1, 2, *range(8)]
