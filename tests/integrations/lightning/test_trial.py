"""The trial of states in Lightning's Trainer, which gives `batch_loss` by itself."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from tests.kit.lightning import join_ranks
from tests.kit.tiny import journal_of
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from trimtab.core.config import Config
from trimtab.core.events import ROLLBACK_PROPOSED, UNDO
from trimtab.integrations.lightning import TrimtabCallback
from trimtab.lab.trainer.local_ranks import run_ranks

AT, STEPS, RATE = 80, 135, 3e-3


class Module(L.LightningModule):  # type: ignore[misc]
    """A classifier with BatchNorm and dropout, which logs what it computes."""

    def __init__(self) -> None:
        super().__init__()
        parts = (nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.model = nn.Sequential(*parts)
        self.seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen += 1
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=RATE)


class TooFast(L.Callback):  # type: ignore[misc]
    """Multiplies the learning rate for five steps."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = RATE * (100 if 0 <= batch_idx - AT < 5 else 1)


def fit(rank: int | None, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(rank or 0)
    truth = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))
    x, noise = (torch.randn(STEPS, 128, width, generator=dice) for width in (8, 4))
    data = list(zip(x, (x @ truth + noise).argmax(-1), strict=True))
    settings = {"recover.snapshot_every": 10, "recover.rollback": "auto"}
    guarded = TrimtabCallback(folder, "recover", config=Config().override(settings), observer=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1 if rank is None else 2,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[guarded, TooFast()],
        **({} if rank is None else join_ranks(rank)),
    )
    module = Module()
    trainer.fit(module, DataLoader(data, batch_size=None))  # type: ignore[arg-type]
    weights = [p.detach().numpy().tobytes() for p in module.parameters()]
    return {"weights": weights, "steps": trainer.global_step, "seen": module.seen}


def assert_restored(folder: Path) -> None:
    events = journal_of(folder).events
    (undo,) = [event for event in events if event.kind == UNDO]
    assert undo.facts["gain"] > 0.1
    assert undo.facts["to_step"] <= AT
    assert [event for event in events if event.kind == ROLLBACK_PROPOSED] == []


def test_a_spoilt_state_is_restored_and_the_trainer_goes_on(tmp_path: Path) -> None:
    left = fit(None, tmp_path)
    assert_restored(tmp_path)
    assert left["steps"] == left["seen"] == STEPS  # a trial leaves no trace in the module
    assert journal_of(tmp_path).step.tolist() == list(range(STEPS))


@pytest.mark.slow
def test_two_ranks_restore_the_same_state(tmp_path: Path) -> None:
    one, other = run_ranks(fit, 2, tmp_path)
    assert_restored(tmp_path)
    assert one["weights"] == other["weights"]
