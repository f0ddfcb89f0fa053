"""Runs of the real Lightning Trainer with a tiny model."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader

from tests.kit.tiny import Outcome, batches, loss_of, make_model
from trimtab.integrations.lightning import TrimtabCallback

NO_NAN = -1
BEGINS_AGAIN = "not resumable|ended before the epoch ended"
"""Lightning's warning, since 2.2 and before, that an epoch begins again."""


def in_settings(*fast: tuple[str, int]) -> pytest.MarkDecorator:
    """Run a test in every precision with accumulation 1 and 4; without `fast` all are fast."""
    settings = {(p, a): 0 for p in ("32-true", "bf16-mixed", "16-mixed") for a in (1, 4)}
    parameters = [
        pytest.param(*one, marks=[] if not fast or one in fast else pytest.mark.slow)
        for one in {**settings, **dict.fromkeys(fast)}
    ]
    return pytest.mark.parametrize(("precision", "accumulate"), parameters)


class Module(L.LightningModule):  # type: ignore[misc]
    """The tiny model of the other tests; the loss of one batch can be made NaN."""

    def __init__(self, nan_at: int = NO_NAN, planned: int = 50, **optimizer: Any) -> None:
        super().__init__()
        self.model = make_model()
        self.nan_at = nan_at
        self._planned = planned
        self.seen: list[float] = []
        """The loss of each batch, as the trainer has not changed it."""
        self._options = {"lr": 1e-2, **optimizer}

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.loss_of(batch)
        self.seen.append(float(loss.detach()))
        return loss * torch.nan if batch_idx == self.nan_at else loss

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), **self._options)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self._planned)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@dataclass(kw_only=True)
class Run:
    """One way to train with Lightning."""

    precision: str = "32-true"
    """"16-mixed" has a GradScaler, which Lightning does not make on the CPU."""
    accumulate: int = 1
    steps: int = 8
    clip: float | None = 0.5
    ranks: int = 1
    initial_scale: float = 1024.0
    make: Callable[[], L.LightningModule] = Module
    trainer: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the Trainer."""

    def fit(self, callbacks: Sequence[L.Callback] = (), **fit: Any) -> tuple[Outcome, L.Trainer]:
        torch.manual_seed(7)
        module = self.make()
        trainer = L.Trainer(**(self._arguments() | self.trainer), callbacks=list(callbacks))
        data = batches(self.steps * self.accumulate * self.ranks)
        fit = {"train_dataloaders": DataLoader(data, batch_size=None)} | fit  # type: ignore[arg-type]
        trainer.fit(module, **fit)
        return outcome(module, trainer), trainer

    def _arguments(self) -> dict[str, Any]:
        precision: dict[str, Any] = {"precision": self.precision}
        if self.precision == "16-mixed":
            scaler = torch.amp.GradScaler("cpu", init_scale=self.initial_scale, growth_interval=5)
            precision = {"plugins": MixedPrecision("16-mixed", "cpu", scaler)}
        return {
            "accelerator": "cpu",
            "devices": self.ranks,
            "max_steps": self.steps,
            "accumulate_grad_batches": self.accumulate,
            "gradient_clip_val": self.clip,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **precision,
        }


def outcome(module: L.LightningModule, trainer: L.Trainer) -> Outcome:
    """What a run has left in weights, optimizer and generator."""
    return Outcome(
        parameters=[parameter.detach().clone() for parameter in module.parameters()],
        state=[optimizer.state_dict()["state"] for optimizer in trainer.optimizers],
        rng=torch.get_rng_state(),
        norms=[],
        losses=list(getattr(module, "seen", [])),
    )


def join_ranks(rank: int, ranks: int = 2) -> dict[str, Any]:
    """What the Trainer needs to use the process group that is there."""
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    return {"strategy": "ddp"}


def watched(folder: Path, mode: str = "observe", **options: Any) -> TrimtabCallback:
    """The callback as a user writes it."""
    return TrimtabCallback(folder, mode, tokens=lambda batch: batch.numel(), **options)
