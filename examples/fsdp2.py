"""Trimtab under FSDP2: `torchrun --standalone --nproc_per_node=2 fsdp2.py`, then
`trimtab diagnose runs/fsdp2`.

A small network learns to guess the next byte of a Python source file from the 16 before it.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import trimtab

dist.init_process_group("gloo")  # "nccl" on GPUs
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # any text will do
windows = text.unfold(0, 17, 1)  # every run of 17 bytes: 16 to look at, 1 to guess

torch.manual_seed(0)  # the same weights on every rank: each keeps its slice of them
model = nn.Sequential(
    nn.Embedding(256, 32), nn.Flatten(), nn.Linear(16 * 32, 256), nn.GELU(), nn.Linear(256, 256)
)
for layer in (model[0], model[2], model[4]):  # those that have weights
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # over the slices: after sharding

torch.manual_seed(dist.get_rank())  # from here on different batches on every rank
# Every rank watches and records; the first one writes the journal of all.
with trimtab.watch(model, optimizer, run_dir="runs/fsdp2") as guard:
    for _ in range(300):
        batch = windows[torch.randint(len(windows), (64,))]
        loss = F.cross_entropy(model(batch[:, :16]), batch[:, 16])
        guard.record(loss=loss, tokens=len(batch))  # of this rank; trimtab takes the mean
        loss.backward()
        guard.clip_grad_norm_(1.0)  # like torch's; returns the norm before clipping
        optimizer.step()
        optimizer.zero_grad()

if dist.get_rank() == 0:
    print(f"last loss {loss.item():.3f}; now: trimtab diagnose runs/fsdp2")
dist.destroy_process_group()
