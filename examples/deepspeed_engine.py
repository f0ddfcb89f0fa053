"""Trimtab with a DeepSpeed engine: `deepspeed deepspeed_engine.py`, or under torchrun.

A small network learns to guess the next byte of a Python source file from the 16 before it.
"""

import argparse
from pathlib import Path

import deepspeed
import torch
import torch.nn.functional as F
from torch import nn

import trimtab

torch.manual_seed(0)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # any text will do
windows = text.unfold(0, 17, 1)
model = nn.Sequential(
    nn.Embedding(256, 32), nn.Flatten(), nn.Linear(16 * 32, 256), nn.GELU(), nn.Linear(256, 256)
)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
    config={
        "train_micro_batch_size_per_gpu": 64,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
)

with trimtab.watch(engine, run_dir="runs/deepspeed", mode="protect") as guard:
    for _ in range(40):
        batch = windows[torch.randint(len(windows), (64,))].to(engine.device)
        loss = F.cross_entropy(engine(batch[:, :16]).float(), batch[:, 16])
        guard.record(loss=loss, tokens=len(batch))
        engine.backward(loss)
        engine.step()

print("now: trimtab diagnose runs/deepspeed")
