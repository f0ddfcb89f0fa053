"""Random single bits, flipped in weights and moments as hardware does: past torch's counters."""

import logging
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import trimtab
from benchmarks.recover.worlds import WORLDS, Run
from benchmarks.results import publish, table
from trimtab.journal import RunDirectory, read_journal
from trimtab.live.recover.memory_watch import HIGH_BITS, state_tensors

STEPS, AT = 70, 40
INTEGERS = {2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}


def publish_flips(number: int) -> None:
    """Flip one bit in each of many runs, and count what was undone."""
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dice = np.random.default_rng(2026)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        outcomes: Counter[str] = Counter()
        lost: list[int] = []
        for seed in range(number // 2):
            kind, updates = _one(seed, dtype, dice)
            outcomes[kind] += 1
            lost += [updates] if updates else []
        rows.append(
            (
                str(dtype).removeprefix("torch."),
                number // 2,
                outcomes["undone"],
                outcomes["missed"],
                outcomes["low bit"],
                outcomes["step count"],
                int(np.median(lost)) if lost else "",
                max(lost, default=""),
            )
        )
    header = (
        "dtype",
        "flips",
        "undone",
        "missed",
        "under 6 %",
        "in a step count",
        "lost, median",
        "most",
    )
    publish(
        "Recover: flipped bits",
        f"scripts/bench recover flips --flips {number}",
        "One bit of one element of a weight or moment, flipped between two updates of a small "
        "language model, a classifier and a regression, one process. Bar: all undone or reported "
        "within 16 steps. A bit that changes a value by less than 6 % is left alone: a clamp in "
        "bf16 does the same. A step count is a single number, which code may double on purpose: it "
        f"is not watched.\n\n{table(header, rows)}",
    )


def _one(seed: int, dtype: torch.dtype, dice: np.random.Generator) -> tuple[str, int]:
    world = WORLDS[seed % len(WORLDS)]
    torch.manual_seed(seed)
    model = world.model().to(dtype)
    run = Run(world, model, world.optimizer(model.parameters()))
    stream = torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        chosen = ""
        with trimtab.watch(model, run.optimizer, run_dir=folder, mode="recover") as guard:
            for step in range(STEPS):
                batch = world.draw(run.data, stream)
                if dtype is torch.bfloat16 and not isinstance(batch, torch.Tensor):
                    batch = tuple(t.to(dtype) if t.is_floating_point() else t for t in batch)
                loss = run.batch_loss(batch)
                run.optimizer.zero_grad()
                loss.backward()
                guard.record(loss=loss)
                if step == AT:
                    chosen = _flip(run, dice)
                run.optimizer.step()
        if chosen in ("step count", "low bit"):
            return chosen, 0
        events = read_journal(RunDirectory(Path(folder))).block.events
        undone = [e for e in events if e.kind == "undo" and e.step <= AT + 16]
        return ("undone", int(undone[0].facts["updates_lost"])) if undone else ("missed", 0)


def _flip(run: Run, dice: np.random.Generator) -> str:
    """Flip a random bit of a random element of a random tensor; returns what it was."""
    parts = state_tensors(run.optimizer)
    part = parts[dice.integers(len(parts))]
    if part.tensor.numel() == 1:
        return "step count"
    as_torch, as_numpy = INTEGERS[part.tensor.element_size()]
    whole = part.tensor.detach().view(as_torch).numpy().reshape(-1).view(as_numpy)
    bit = int(dice.integers(8 * part.tensor.element_size()))
    whole[dice.integers(len(whole))] ^= as_numpy(1 << bit)
    mantissa = {torch.float32: 23, torch.bfloat16: 7}[part.tensor.dtype]
    return "low bit" if bit < mantissa - HIGH_BITS else part.name({})
