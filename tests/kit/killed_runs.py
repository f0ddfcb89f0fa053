"""Runs that are killed by SIGKILL at random moments and launched again."""

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import trimtab
from tests.kit.runs import FEATURES, batches, seed_all
from trimtab.core.config import Config, RecoverConfig
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

STEPS, EVERY = 24, 3


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a run is trained."""

    world: int = 1
    wrapper: str = ""
    background: bool = False
    recovers: bool = False
    """Whether a guard in "recover" watches it."""

    @property
    def most_lost(self) -> int:
        """A save in the background counts late: the run may be one interval further by then."""
        return EVERY * (2 if self.background else 1)


class Shard:
    """The batches of one rank, from any position on."""

    def __init__(self, rank: int, world: int) -> None:
        self._data = batches(STEPS * world)[rank::world]
        self._first = 0

    def seek(self, index: int) -> None:
        self._first = index

    def __iter__(self) -> Iterator[Any]:
        yield from enumerate(self._data[self._first :], self._first)


def train(folder: Path, layout: Layout, rank: int, launch: int) -> None:
    """What each rank of a launch does; every trained step leaves a line."""
    seed_all(0)  # a launch that was killed before its first checkpoint begins again
    model: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)
    )
    if layout.wrapper == "ddp":
        model = DistributedDataParallel(model)
    elif layout.wrapper == "fsdp2":
        fully_shard(model)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    checkpoints = Checkpoints(
        model, optimizer, run_dir=folder, scheduler=scheduler, background=layout.background
    )
    step = checkpoints.resume().step
    with (folder / f"steps-{rank}.txt").open("a", buffering=1) as lines:
        lines.write(f"{launch} resumed {step}\n")

        def train_step(number: int, batch: Any, guard: Any = None) -> None:
            position, (inputs, targets) = batch
            loss = nn.functional.mse_loss(model(inputs), targets)
            if guard is not None:
                guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            lines.write(f"{launch} {number} {position}\n")

        if layout.recovers:
            with trimtab.watch(
                model,
                optimizer,
                run_dir=folder,
                mode="recover",
                checkpoints=checkpoints,
                config=Config(recover=RecoverConfig(snapshot_every=2)),
            ) as guard:
                for turn in guard.steps(Shard(rank, layout.world)):
                    for batch in turn:
                        train_step(turn.number, batch, guard)
                    if (turn.number + 1) % EVERY == 0:
                        guard.checkpoint()
        else:
            for batch in checkpoints.batches(Shard(rank, layout.world)):
                train_step(step, batch)
                step += 1
                if step % EVERY == 0:
                    checkpoints.save(step)
            checkpoints.wait()
    values = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    if rank == 0:
        np.savez(folder / "final.npz", *(value.detach().numpy() for value in values))


def rank_main(folder: Path, layout: Layout, rank: int, launch: int) -> None:
    torch.set_num_threads(1)
    try:
        if layout.world > 1:
            rendezvous = f"file://{folder}/rendezvous-{launch}"
            dist.init_process_group("gloo", rendezvous, rank=rank, world_size=layout.world)
        train(folder, layout, rank, launch)
        if layout.world > 1:
            dist.barrier()
        os._exit(0)
    finally:
        os._exit(1)  # skip exit handlers, which belong to the parent


def start(folder: Path, layout: Layout, launch: int) -> list[ForkProcess]:
    folder.mkdir(exist_ok=True)
    ranks = [
        get_context("fork").Process(target=rank_main, args=(folder, layout, rank, launch))
        for rank in range(layout.world)
    ]
    for process in ranks:
        process.start()
    return ranks


def kill(ranks: list[ForkProcess], dice: random.Random) -> bool:
    """Kill one rank after the other, now and then with a pause; whether any was still running."""
    running = False
    for process in dice.sample(ranks, len(ranks)):
        running |= process.is_alive()
        assert process.pid is not None
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(dice.choice([0.0, 0.0, 0.05]))
    for process in ranks:
        process.join()
    return running


def finish(ranks: list[ForkProcess]) -> None:
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0] * len(ranks)


def wait_for_steps(folder: Path, ranks: list[ForkProcess], count: int) -> None:
    """Until the launch has trained this many steps, or has ended."""
    path = folder / "steps-0.txt"
    before = path.stat().st_size if path.exists() else 0
    while any(process.is_alive() for process in ranks):
        text = path.read_text()[before:] if path.exists() else ""
        if len(text.splitlines()) > count:  # the first line says where it resumed
            return
        time.sleep(0.005)


def read_lines(folder: Path, rank: int) -> list[list[str]]:
    text = (folder / f"steps-{rank}.txt").read_text()
    return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]


def assert_nothing_lost(folder: Path, layout: Layout) -> None:
    """Every position is trained exactly once in the line of steps that led to the end."""
    for rank in range(layout.world):
        trained: dict[int, int] = {}
        reached = 0
        for _, what, value in read_lines(folder, rank):
            if what == "resumed":
                resumed = int(value)
                assert 0 <= reached - resumed <= layout.most_lost
                trained = {s: p for s, p in trained.items() if s < resumed}
            else:
                trained[int(what)] = int(value)
                reached = int(what) + 1
        assert trained == {step: step for step in range(STEPS)}


def survive_kills(tmp_path: Path, layout: Layout, kills: int, seed: int) -> None:
    straight = tmp_path / "straight"
    finish(start(straight, layout, 0))
    dice = random.Random(seed)
    left = kills
    for number in itertools.count():
        folder = tmp_path / f"run-{number}"
        for launch in itertools.count():
            ranks = start(folder, layout, launch)
            if left:
                wait_for_steps(folder, ranks, dice.randrange(3 * EVERY))
                time.sleep(dice.random() * 0.1)
                if kill(ranks, dice):
                    left -= 1
                    continue
            finish(ranks)
            break
        assert_nothing_lost(folder, layout)
        with np.load(folder / "final.npz") as mine, np.load(straight / "final.npz") as theirs:
            assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
        if not left:
            return


LAYOUTS = {
    "one rank": Layout(),
    "in the background": Layout(background=True),
    "ddp": Layout(world=2, wrapper="ddp"),
    "fsdp2 in the background": Layout(world=2, wrapper="fsdp2", background=True),
    "recover": Layout(recovers=True),
    "ddp, recover in the background": Layout(
        world=2, wrapper="ddp", background=True, recovers=True
    ),
}
