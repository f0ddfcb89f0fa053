"""Single-layer faults in a small GPT: is the layer that moved first the one with the fault?"""

import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import trimtab
from benchmarks.results import publish, table
from trimtab.explain.measures import first_movers
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.sizes import ModelConfig
from trimtab.lab.trainer.train import EVERY_TENTH

LAYERS, STEPS, FAULT = 6, 150, 125
SIZES = ModelConfig(vocab_size=64, width=32, layers=LAYERS, heads=4)

Fault = Callable[[Gpt, torch.optim.Optimizer, int, int], None]
"""Called at every step from FAULT on, before the update, with the layer and the step."""


@torch.no_grad()
def weights_scaled(model: Gpt, optimizer: torch.optim.Optimizer, layer: int, step: int) -> None:
    """The weights of a layer grow by a half, once."""
    if step == FAULT:
        for parameter in model.blocks[layer].parameters():
            parameter.mul_(1.5)


@torch.no_grad()
def weights_noisy(model: Gpt, optimizer: torch.optim.Optimizer, layer: int, step: int) -> None:
    """Noise as large as the weights of an MLP is added to them, once."""
    if step == FAULT:
        for parameter in model.blocks[layer].get_submodule("mlp").parameters():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(layer))
            parameter.add_(noise * parameter.std())


@torch.no_grad()
def keys_grow(model: Gpt, optimizer: torch.optim.Optimizer, layer: int, step: int) -> None:
    """The projections of queries, keys and values grow by 10 % a step."""
    model.blocks[layer].get_parameter("attention.qkv.weight").mul_(1.1)


def gradient_large(model: Gpt, optimizer: torch.optim.Optimizer, layer: int, step: int) -> None:
    """The gradient of a layer is 30 times too large."""
    for parameter in model.blocks[layer].parameters():
        if parameter.grad is not None:
            parameter.grad *= 30


def rate_large(model: Gpt, optimizer: torch.optim.Optimizer, layer: int, step: int) -> None:
    """The learning rate of a layer is 20 times too high."""
    if step == FAULT:
        optimizer.param_groups[layer]["lr"] *= 20


KINDS: dict[str, Fault] = {
    "weights x1.5": weights_scaled,
    "noise in an MLP": weights_noisy,
    "attention weights grow": keys_grow,
    "gradient x30": gradient_large,
    "learning rate x20": rate_large,
}


def first_layer(fault: Fault | None, layer: int, seed: int) -> tuple[str | None, float]:
    """Train with a fault; return the layer that moved first, and how far in deviations."""
    torch.manual_seed(seed)
    model = Gpt(SIZES)
    blocks = [list(block.parameters()) for block in model.blocks]
    inside = {id(parameter) for block in blocks for parameter in block}
    others = [p for p in model.parameters() if id(p) not in inside]
    groups = [{"params": parameters} for parameters in (*blocks, others)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    table_of = torch.randint(0, 64, (64, 3))
    with tempfile.TemporaryDirectory() as folder:
        with trimtab.watch(model, optimizer, run_dir=folder, config=EVERY_TENTH) as guard:
            for step in range(STEPS):
                tokens = torch.randint(0, 64, (8, 25))
                for place in range(1, 25):  # three successors of each token
                    pick = torch.randint(0, 3, (8,))
                    tokens[:, place] = table_of[tokens[:, place - 1], pick]
                loss = model(tokens[:, :-1], tokens[:, 1:]).loss
                guard.record(loss=loss)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if fault is not None and step >= FAULT:
                    fault(model, optimizer, layer, step)
                optimizer.step()
                optimizer.zero_grad()
        block = read_journal(RunDirectory(Path(folder))).block
    moves, _ = first_movers(block, int((block.step >= FAULT).argmax()))
    return (moves[0].layer, moves[0].sigmas) if moves else (None, 0.0)


def main() -> None:
    """Plant every kind in four layers; ten runs have no fault."""
    logging.disable(logging.CRITICAL)
    rows = []
    for name, fault in KINDS.items():
        layers = (0, 2, 3, 5)
        found = [first_layer(fault, layer, seed=layer)[0] for layer in layers]
        right = sum(one == str(layer) for one, layer in zip(found, layers, strict=True))
        rows.append((name, f"{right} of {len(layers)}", ", ".join(map(str, found))))
        print(*rows[-1], file=sys.stderr, flush=True)
    healthy = [first_layer(None, 0, seed=100 + seed)[0] for seed in range(10)]
    rows.append(("none", f"{healthy.count(None)} of {len(healthy)} silent", ""))
    total = sum(int(row[1].split()[0]) for row in rows[:-1])
    publish(
        "Planted in one layer",
        "scripts/bench planted_layers",
        f"A GPT of {LAYERS} layers, {STEPS} steps; a fault of one layer (0, 2, 3 or 5) from step "
        f"{FAULT} on. Named: the layer that moved first.\n\n"
        + table(("fault", "right", "named"), rows),
        [
            ("layer that moved first is the faulty one", f"{total} of {4 * len(KINDS)}", "-"),
            ("healthy runs in which no layer is named", f"{healthy.count(None)} of 10", "-"),
        ],
    )


if __name__ == "__main__":
    main()
