"""Random schedules on several ranks with trials: they decide alike, and no rank waits for another.

`TRIMTAB_SCHEDULES=100` runs so many on two ranks, `TRIMTAB_RANKS=4` on four.
"""

import io
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import pytest
import torch
import torch.distributed as dist
from tests.kit.launch import run_ranks
from tests.live.recover.test_trial import often as opens_often
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.config import Config
from trimtab.live.recover.trial import StateTrial
from trimtab.live.recover.trial_rule import TrialSchedule
from trimtab.live.recover.undo import Undo

STEPS, RATE, FEW = 75, 3e-3, 5
ON_ONE_RANK = ("spike", "nan", "evaluate", "fail")
ON_ALL = ("evaluate all", "save", "edit", "edit by data", "skip", "answer", "announce", "too fast")


def schedule_of(seed: int, world: int) -> tuple[dict[str, Any], dict[int, list[tuple[str, int]]]]:
    """Return the settings of a run, and what happens before which step, on which rank."""
    choice = random.Random(seed)
    settings = {
        "rollback": choice.choice(["ask", "auto", "auto"]),
        "snapshot_every": choice.choice([0, 4, 10]),
        "lag": choice.choice([0, 1, 2, 2, 5]),
        "accumulate": choice.choice([1, 2]),
        "opens often": choice.random() < 0.6,
    }
    events: dict[int, list[tuple[str, int]]] = {}
    for kind in (*ON_ONE_RANK, *ON_ALL):
        for _ in range(choice.choice([0, 0, 1, 2] if kind in ("fail", "edit") else [0, 1, 2, 3])):
            at = choice.randrange(2, STEPS)
            events.setdefault(at, []).append((kind, choice.randrange(world)))
    return settings, events


@contextmanager
def noted(often: bool) -> Iterator[list[Any]]:
    """Let every decision on a trial and every restore of this rank be noted."""
    decisions: list[Any] = []
    receive, restore = StateTrial.receive, Undo._restore

    def receives(self: StateTrial, tracked: Any, update: int, *rest: Any) -> Any:
        found = receive(self, tracked, update, *rest)
        trial = self.open_trial
        if found is not None or trial is not None:
            decisions.append((update, str(found)[:60], trial and (trial.snapshot, trial.gaps[-1:])))
        return found

    def restores(self: Undo, tracked: Any, step: int, pending: Any) -> None:
        decisions.append(("restores", tracked.num_updates, step))
        restore(self, tracked, step, pending)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(StateTrial, "receive", receives))
        patches.enter_context(mock.patch.object(Undo, "_restore", restores))
        if often:
            patches.enter_context(mock.patch.object(TrialSchedule, "opens", opens_often))
        yield decisions


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))
    )


def follow(seeds: list[int], folder: Path, rank: int) -> list[tuple[int, Any, Any]]:
    """Train by each schedule; return decisions, and the bits of the weights after each step."""
    return [(seed, *follow_one(seed, folder / str(seed), rank)) for seed in seeds]


def follow_one(seed: int, folder: Path, rank: int) -> tuple[list[Any], list[int]]:
    settings, events = schedule_of(seed, dist.get_world_size())
    model = DistributedDataParallel(make_model())
    optimizer = optim.AdamW(model.parameters(), lr=RATE)
    truth = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))
    stream = torch.Generator().manual_seed(1000 * seed + rank)
    torch.manual_seed(seed + rank)
    fails = [False]
    bits = []

    def batch_loss(batch: Any) -> torch.Tensor:
        if fails[0]:
            raise RuntimeError("planted")
        return F.cross_entropy(model(batch[0]), batch[1])

    config = Config().override(
        {
            "recover.snapshot_every": settings["snapshot_every"],
            "recover.rollback": settings["rollback"],
            "live.lag_steps": settings["lag"],
        }
    )
    fast_until = -1
    with (
        noted(settings["opens often"]) as decisions,
        trimtab.watch(
            *(model, optimizer),
            run_dir=folder,
            mode="recover",
            batch_loss=batch_loss,
            config=config,
            observer=False,
        ) as guard,
    ):
        for step in range(STEPS):
            now = {kind for kind, at in events.get(step, []) if kind in ON_ALL or at == rank}
            if "too fast" in now:
                fast_until = step + 5
            optimizer.param_groups[0]["lr"] = RATE * (100 if step < fast_until else 1)
            fails[0] = fails[0] or "fail" in now
            happen(now, model, optimizer, guard)
            for _ in range(settings["accumulate"]):
                x = torch.randn(32, 8, generator=stream) * (50 if "spike" in now else 1)
                batch = x, (x @ truth + torch.randn(32, 4, generator=stream)).argmax(1)
                loss = F.cross_entropy(model(x), batch[1]) * (torch.nan if "nan" in now else 1)
                guard.record(loss=loss, batch=batch)
                (loss / settings["accumulate"]).backward()
            if "skip" in now:
                guard.skip()
            else:
                optimizer.step()
            optimizer.zero_grad()
            bits.append(crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters())))
    dist.barrier()
    return decisions, bits


def happen(now: set[str], model: Any, optimizer: Any, guard: Any) -> None:
    """Do what a loop does between two steps."""
    weight = model.module[4].weight
    if now & {"evaluate", "evaluate all"}:
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(8, 8))
        model.train()
        guard.record(eval_loss=1.0)
    if "save" in now:
        guard.event("checkpoint")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"guard": guard.state_dict()}, io.BytesIO())
    if "edit" in now:
        with torch.no_grad():
            weight.mul_(0.9)
    if "edit by data" in now:
        weight.data[0] = 0.01
    if "answer" in now:
        guard.undo()
    if "announce" in now:
        guard.event("phase 2")


def check(num_ranks: int, seeds: list[int], folder: Path) -> int:
    """Run schedules; return how many decisions they led to."""
    results = run_ranks(
        partial(follow, seeds, folder), num_ranks, deadline=60 + 10.0 * num_ranks * len(seeds)
    )
    num_decisions = 0
    for of_seed in zip(*results, strict=True):
        (seed, decisions, bits), *others = of_seed
        num_decisions += len(decisions)
        for _, other_decisions, other_bits in others:
            assert decisions == other_decisions, seed
            assert bits == other_bits, seed
    return num_decisions


def test_ranks_decide_alike_whatever_happens(tmp_path: Path) -> None:
    assert check(2, list(range(FEW)), tmp_path) > 20


@pytest.mark.slow
def test_many_schedules(tmp_path: Path) -> None:
    num_ranks = int(os.environ.get("TRIMTAB_RANKS", "4"))
    count = int(os.environ.get("TRIMTAB_SCHEDULES", "10"))
    first = int(os.environ.get("TRIMTAB_FIRST", "100"))
    check(num_ranks, list(range(first, first + count)), tmp_path)
