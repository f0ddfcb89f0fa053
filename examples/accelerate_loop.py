"""Trimtab in a loop with Accelerate: `python accelerate_loop.py`, or `accelerate launch` it.

A small network learns to guess the next byte of a Python source file from the 16 before it.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trimtab.integrations.accelerate import watch

torch.manual_seed(0)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # any text will do
model = nn.Sequential(
    nn.Embedding(256, 32), nn.Flatten(), nn.Linear(16 * 32, 256), nn.GELU(), nn.Linear(256, 256)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(text.unfold(0, 17, 1)[:6400]), batch_size=32, shuffle=True)

accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

with watch(accelerator, model, optimizer, run_dir="runs/accelerate", mode="protect") as guard:
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(batch[:, :16]), batch[:, 16])
            guard.record(loss=loss, tokens=len(batch))  # undivided, before backward
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

accelerator.print("now: trimtab diagnose runs/accelerate")
