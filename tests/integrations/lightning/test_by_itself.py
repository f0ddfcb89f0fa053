"""A Lightning run in `recover` looks after itself."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.integrations.lightning.test_recover import MANUAL
from tests.kit.lightning import BEGINS_AGAIN, Module, Run, watched
from tests.kit.tiny import batches, journal_of, loss_of
from torch.utils.data import DataLoader

from trimtab.core.config import Config
from trimtab.core.errors import RunStopped
from trimtab.integrations.lightning import last_good_checkpoint
from trimtab.journal import RunDirectory
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.live.recover.order import Order


class DamagesOnce(L.Callback):  # type: ignore[misc]
    """Multiplies the weights of the head, once."""

    def __init__(self, step: int) -> None:
        self._step: int | None = step

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == self._step:
            self._step = None
            with torch.no_grad():
                pl_module.model.head.weight.mul_(300.0)


@pytest.mark.slow
def test_damaged_weights_are_found_and_the_run_returns_to_before_them(tmp_path: Path) -> None:
    module = Module(planned=400, lr=1e-3)
    data: Any = batches(100, size=8) * 4
    callback = watched(tmp_path, "recover", batch_loss=lambda batch: loss_of(module.model, batch))
    trained, trainer = Run(steps=330, make=lambda: module).fit(
        [callback, DamagesOnce(250)], train_dataloaders=DataLoader(data, batch_size=None)
    )
    block = journal_of(tmp_path)
    back = [event for event in block.events if event.kind == "rollback"]
    assert len(back) == 1
    assert back[0].facts["to"] <= 250
    assert trainer.global_step == 330
    assert max(trained.losses[-20:]) < 4.0


@pytest.mark.slow
def test_without_memory_for_snapshots_the_run_ends_for_a_relaunch(tmp_path: Path) -> None:
    module = Module(planned=400, lr=1e-3)
    data: Any = batches(100, size=8) * 4
    config = Config().override({"recover.memory_share": 1e-9, "ladder.max_relaunches": 1})
    callback = watched(
        tmp_path,
        "recover",
        batch_loss=lambda batch: loss_of(module.model, batch),
        config=config,
    )
    saves = ModelCheckpoint(tmp_path / "own", every_n_train_steps=50, save_top_k=-1)
    with pytest.raises(RunStopped) as stopped:
        Run(steps=330, make=lambda: module, trainer={"enable_checkpointing": True}).fit(
            [callback, saves, DamagesOnce(252)],
            train_dataloaders=DataLoader(data, batch_size=None),
        )
    assert stopped.value.code == 75
    found = last_good_checkpoint(tmp_path)
    assert found is not None
    assert torch.load(found, weights_only=False)["global_step"] <= 250


class Orders(L.Callback):  # type: ignore[misc]
    """The guard ends the run for a relaunch, as the ladder does where no snapshot helps."""

    def __init__(self, watcher: Any, step: int) -> None:
        self._watcher = watcher
        self._step = step

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self._step:
            order = Order(to=None, exit_code=RunExit.RELAUNCH, reason="no snapshot is old enough")
            self._watcher.guard.recovery.order(order)


def test_a_run_that_asks_for_a_relaunch_ends_and_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    callback = watched(tmp_path, "recover", config=MANUAL)
    saves = ModelCheckpoint(tmp_path / "own", every_n_train_steps=5)
    data: Any = batches(40)
    options = {"train_dataloaders": DataLoader(data, batch_size=None)}
    run = Run(steps=20, trainer={"enable_checkpointing": True})
    with pytest.raises(RunStopped) as stopped:
        run.fit([callback, saves, Orders(callback, 12)], **options)
    assert stopped.value.code == 75
    request = ExitRequest.read(RunDirectory(tmp_path).home)
    assert request is not None
    assert request.step == 12
    assert callback.guard is None
    found = last_good_checkpoint(tmp_path)
    with pytest.warns(UserWarning, match=BEGINS_AGAIN):
        _, trainer = run.fit([callback, saves], ckpt_path=found, **options)
    assert trainer.global_step == 20
    assert journal_of(tmp_path).step.tolist() == [*range(12), *range(10, 20)]
