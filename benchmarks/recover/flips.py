"""Random single bits, flipped in weights and moments as hardware does: past torch's counters."""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import trimtab
from benchmarks.recover.worlds import WORLDS, Run, World
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.live.recover.memory_watch import MIN_ELEMENTS, state_tensors
from trimtab.state.host_copy import detached

EARLIEST, LATEST = 21, 41
"""The step before whose update the bit flips. Snapshots are 10 updates apart, so what an undo loses
depends on it."""

WITHIN = 16
"""Steps within which a flip must be undone or reported."""

LAYOUTS = {"one process": 0.6, "DDP, 2 ranks": 0.2, "FSDP2, 2 ranks": 0.2}
"""How the model is trained, and the share of the flips."""

INTEGERS = {2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}
MANTISSA = {torch.float32: 23, torch.bfloat16: 7}
PER_LAUNCH = 25
"""Runs that a pair of processes makes one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipOutcome:
    """What became of one flip."""

    bit: str
    """"high" (a factor of at least 4), "low", or "small" (a tensor of few numbers)."""
    undone: int | None
    """Updates lost by the undo within `WITHIN` steps; None without one."""
    num_undos: int
    agrees: bool
    """Whether both ranks have the same weights at the end."""


def publish_flips(number: int, folder: str | None = None) -> None:
    """Flip one bit in each of many runs, and count what was undone."""
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(folder or spare))
        for layout, share in LAYOUTS.items():
            for dtype in (torch.float32, torch.bfloat16):
                seeds = range(round(number * share / 2))
                found = _outcomes(layout, dtype, seeds, cache)
                rows.append((layout, str(dtype).removeprefix("torch."), *_row(layout, found)))
    header = (
        *("trained on", "dtype", "flips", "high bits", "undone", "missed", "undone wrongly"),
        *("replicas differ", "low bits", "small tensors", "lost, median", "most"),
    )
    high, undone = (sum(int(str(row[at])) for row in rows) for at in (3, 4))
    publish(
        "Recover: flipped bits",
        f"scripts/bench recover flips --flips {number}",
        "One bit of one element of a weight or moment, flipped before a random update of a small "
        "language model, a classifier and a regression, on one rank; all of them are small enough "
        "to be summed whole in every update. Bar: all that change a value by a factor of at least "
        "4, or the sign of a moment (high bits), are undone or reported within "
        f"{WITHIN} steps, none wrongly. "
        "Wrongly: an undo at another time, or a second one. A bit that doubles, halves or negates "
        "a weight, or changes it by less, is left alone: code does the same to one element. So "
        f"are tensors of fewer than {MIN_ELEMENTS} numbers, which are set by hand. Lost: "
        "updates, those until all ranks know included; bar: 1, which would need a snapshot of "
        "every update.\n\n"
        f"{table(header, rows)}",
        [("flips of high bits undone", f"{undone} of {high}", "all")],
    )


def _outcomes(
    layout: str, dtype: torch.dtype, seeds: Sequence[int], cache: ResultCache
) -> list[FlipOutcome]:
    found = []
    for first in range(0, len(seeds), PER_LAUNCH):
        part = seeds[first : first + PER_LAUNCH]
        name = f"{layout} {dtype} {part[0]} to {part[-1]}"
        kept = cache.get(name, partial(_launch, layout, dtype, part))
        found += [FlipOutcome(**outcome) for outcome in kept["outcomes"]]
    return found


def _launch(layout: str, dtype: torch.dtype, seeds: Sequence[int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        if layout == "one process":
            found = _flip_all(0, layout, dtype, seeds, Path(folder))
        else:
            found = run_ranks(_flip_all, 2, layout, dtype, seeds, Path(folder), timeout=3600)[0]
    return {"outcomes": [asdict(outcome) for outcome in found]}


def _row(layout: str, found: Sequence[FlipOutcome]) -> tuple[object, ...]:
    high = [outcome for outcome in found if outcome.bit == "high"]
    lost = [outcome.undone for outcome in high if outcome.undone is not None]
    wrong = sum(outcome.num_undos - (outcome.undone is not None) for outcome in found)
    return (
        len(found),
        len(high),
        len(lost),
        len(high) - len(lost),
        wrong,
        sum(not o.agrees for o in high if o.undone) if layout.startswith("DDP") else "-",
        sum(outcome.bit == "low" for outcome in found),
        sum(outcome.bit == "small" for outcome in found),
        f"{np.median(lost):.0f}" if lost else "",
        max(lost, default=""),
    )


def _flip_all(
    rank: int, layout: str, dtype: torch.dtype, seeds: Sequence[int], folder: Path
) -> list[FlipOutcome]:
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    return [_flip_one(rank, layout, dtype, seed, folder / f"{seed}") for seed in seeds]


def _flip_one(rank: int, layout: str, dtype: torch.dtype, seed: int, folder: Path) -> FlipOutcome:
    world = WORLDS[seed % len(WORLDS)]
    dice = np.random.default_rng([2026, seed, len(layout), int(dtype is torch.float32)])
    at, on = int(dice.integers(EARLIEST, LATEST)), int(dice.integers(2))
    on = 0 if layout == "one process" else on
    run = _make(world, layout, dtype, seed)
    stream = torch.Generator().manual_seed(1000 * rank + seed)
    bit = ""
    with trimtab.watch(run.model, run.optimizer, run_dir=folder, mode="recover") as guard:
        for step in range(at + WITHIN + 4):
            batch = world.draw(run.data, stream)
            if dtype is torch.bfloat16 and not isinstance(batch, torch.Tensor):
                batch = tuple(t.to(dtype) if t.is_floating_point() else t for t in batch)
            loss = run.batch_loss(batch)
            run.optimizer.zero_grad()
            loss.backward()
            guard.record(loss=loss)
            if step == at and rank == on:
                bit = _flip(run, dice)
            run.optimizer.step()
    sums = torch.stack([detached(p).double().sum() for p in run.model.parameters()])
    agrees = True
    if layout != "one process":
        kinds: list[Any] = [None, None]
        dist.all_gather_object(kinds, (bit, sums.tolist()))  # who has flipped knows which bit
        bit = kinds[on][0]
        agrees = kinds[0][1] == kinds[1][1]
    events = read_journal(RunDirectory(folder)).block.events if rank == 0 else ()
    undos = [event for event in events if event.kind == "undo"]
    mine = [event for event in undos if at <= event.step <= at + WITHIN]
    return FlipOutcome(
        bit=bit,
        undone=int(mine[0].facts["updates_lost"]) if mine else None,
        num_undos=len(undos),
        agrees=agrees,
    )


def _make(world: World, layout: str, dtype: torch.dtype, seed: int) -> Run:
    torch.manual_seed(seed)
    model: Any = world.model().to(dtype)
    if layout.startswith("DDP"):
        model = DistributedDataParallel(model)
    elif layout.startswith("FSDP2"):
        fully_shard(model)
    return Run(world, model, world.optimizer(model.parameters()))


def _flip(run: Run, dice: np.random.Generator) -> str:
    """Flip a random bit of a random element of a random tensor; returns which kind of bit."""
    parts = [p for p in state_tensors(run.optimizer) if detached(p.tensor).numel() > 0]
    part = parts[dice.integers(len(parts))]
    tensor = detached(part.tensor)
    as_torch, as_numpy = INTEGERS[tensor.element_size()]
    whole = tensor.view(as_torch).numpy().reshape(-1).view(as_numpy)
    bit = int(dice.integers(8 * tensor.element_size()))
    whole[dice.integers(len(whole))] ^= as_numpy(1 << bit)
    if tensor.numel() < MIN_ELEMENTS:
        return "small"
    is_sign_of_weight = part.key is None and bit == 8 * tensor.element_size() - 1
    return "high" if bit > MANTISSA[tensor.dtype] and not is_sign_of_weight else "low"
