"""The Lightning Trainer."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
from tests.kit.lightning import Module, Run, join_ranks, watched

from benchmarks.trainers.setting import (
    BY_HAND,
    NAN_STEP,
    STEPS,
    Outcome,
    Plan,
    Setting,
    Watching,
)

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def train(rank: int, folder: Path, setting: Setting, plan: Plan) -> Outcome:
    """A run of the Trainer."""
    is_last = rank == setting.ranks - 1
    nan_at = (NAN_STEP - 1) * setting.accumulate if plan.has_nan and is_last else -1
    watcher = None if plan.mode is None else watched(folder, plan.mode, config=BY_HAND)
    look = _Look(watcher)
    run = Run(
        precision=PRECISIONS[setting.precision],
        accumulate=setting.accumulate,
        steps=STEPS,
        ranks=setting.ranks,
        make=lambda: _Module(nan_at=nan_at),
        trainer=join_ranks(rank, setting.ranks),
    )
    _, trainer = run.fit([*([] if watcher is None else [watcher]), look])
    return look.watching.outcome(trainer.lr_scheduler_configs[0].scheduler.get_last_lr())


class _Module(Module):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Without reading the loss, as `Module` does."""
        loss = self.loss_of(batch)
        return loss * torch.nan if batch_idx == self.nan_at else loss


class _Look(L.Callback):  # type: ignore[misc]
    def __init__(self, watcher: Any) -> None:
        self.watching = Watching()
        self._watcher = watcher

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.fit_loop._should_accumulate():
            return
        self.watching.look(pl_module, trainer.optimizers[0])
