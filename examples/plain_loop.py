"""Trimtab in a plain training loop: `python plain_loop.py`, then `trimtab diagnose runs/plain`.

A small network learns to guess the next byte of a Python source file from the 16 before it.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import trimtab

torch.manual_seed(0)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # any text will do
windows = text.unfold(0, 17, 1)  # every run of 17 bytes: 16 to look at, 1 to guess

model = nn.Sequential(
    nn.Embedding(256, 32), nn.Flatten(), nn.Linear(16 * 32, 256), nn.GELU(), nn.Linear(256, 256)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with trimtab.watch(model, optimizer, run_dir="runs/plain") as guard:
    for _ in range(300):
        batch = windows[torch.randint(len(windows), (64,))]
        loss = F.cross_entropy(model(batch[:, :16]), batch[:, 16])
        guard.record(loss=loss, tokens=len(batch))
        loss.backward()
        guard.clip_grad_norm_(1.0)  # like torch's; records the norm before clipping
        optimizer.step()
        optimizer.zero_grad()

print(f"last loss {loss.item():.3f}; now: trimtab diagnose runs/plain")
