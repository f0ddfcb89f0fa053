"""Trimtab in the Lightning Trainer: `python lightning_trainer.py`, then `trimtab diagnose runs/pl`.

A small network learns to guess the next byte of a Python source file from the 16 before it.
"""

import argparse
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trimtab.integrations.lightning import TrimtabCallback, last_good_checkpoint


class NextByte(L.LightningModule):  # type: ignore[misc]
    """Guesses a byte."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(16 * 32, 256)),
            *(nn.GELU(), nn.Linear(256, 256)),
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        (windows,) = batch
        return F.cross_entropy(self.net(windows[:, :16]), windows[:, 16])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


text = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # any text will do
loader = DataLoader(TensorDataset(text.unfold(0, 17, 1)), batch_size=64, shuffle=True)

trainer = L.Trainer(
    max_steps=100,
    accelerator="auto",
    gradient_clip_val=1.0,
    default_root_dir="runs/pl",
    logger=False,
    callbacks=[TrimtabCallback("runs/pl", mode="protect", tokens=lambda batch: len(batch[0]))],
)
trainer.fit(NextByte(), loader, ckpt_path=last_good_checkpoint("runs/pl"))  # None: from scratch

print("now: trimtab diagnose runs/pl")
