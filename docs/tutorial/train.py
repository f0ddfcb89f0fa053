"""A small language model on bytes: `python train.py train.toml > train.csv`. Needs torch only.

The model guesses the next byte of Python source files. It reads the settings that it trains with
from the `[training]` table of a TOML file.
"""

import argparse
import math
import sys
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


def rate(step: int) -> float:
    """The learning rate of a step: a linear warm-up, then one cosine after the other."""
    if step < plan["warmup_steps"]:
        return plan["lr"] * (step + 1) / plan["warmup_steps"]
    progress = (step - plan["warmup_steps"]) / (plan["steps"] - plan["warmup_steps"])
    cycles = plan["cycles"] if plan["schedule"] == "cosine-restarts" else 1
    share = 0.5 * (1 + math.cos(math.pi * (progress * cycles % 1)))
    return plan["final_lr"] + (plan["lr"] - plan["final_lr"]) * share


plan = tomllib.loads(Path(sys.argv[1]).read_text())["training"]
torch.manual_seed(0)
sources = sorted(Path(argparse.__file__).parent.glob("a*.py"))  # any text will do
text = torch.tensor(list(b"".join(path.read_bytes() for path in sources)))
length = plan["seq_len"]
windows = text.unfold(0, length + 1, 1)
mask = nn.Transformer.generate_square_subsequent_mask(length)

embed = nn.Embedding(256, 64)
place = nn.Embedding(length, 64)
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
blocks = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(64), enable_nested_tensor=False)
head = nn.Linear(64, 256)
model = nn.ModuleList([embed, place, blocks, head])
optimizer = torch.optim.AdamW(
    model.parameters(),
    lr=plan["lr"],
    betas=(plan["beta1"], plan["beta2"]),
    weight_decay=plan["weight_decay"],
)

print("step,loss,grad_norm,lr")
for step in range(plan["steps"]):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    batch = windows[torch.randint(len(windows), (plan["batch_size"],))]
    inputs, targets = batch[:, :-1], batch[:, 1:]
    hidden = blocks(embed(inputs) + place.weight, mask=mask, is_causal=True)
    loss = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), plan["clip_norm"])
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step},{loss.item():.5f},{norm.item():.5f},{rate(step):.4g}")
