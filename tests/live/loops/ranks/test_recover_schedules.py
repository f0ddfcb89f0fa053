"""Random schedules on four ranks that recover: nobody waits for ever, and all ranks go back alike.

`SCHEDULE_SEEDS` sets how many; `scripts/bench loops schedules 50` runs 50 of each kind. A failing
schedule is run again by its seed.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.live.loops.loop import adamw
from tests.live.loops.ranks.launch import digest, run_ranks
from tests.live.tiny import batches, journal_of, loss_of, make_model
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.errors import RestoreError
from trimtab.live.recover.order import Order, ProbeStep
from trimtab.restore.snapshot import Snapshot

WORLD = 4
STEPS = 40
KNOWN = (1, 9)
"""A rank that is closed while an order is under way; two orders in consecutive steps."""
SEEDS = range(int(os.environ["SCHEDULE_SEEDS"])) if "SCHEDULE_SEEDS" in os.environ else KNOWN


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What happens before which step; the same on all ranks."""

    lag: int
    back: dict[int, tuple[int, tuple[int, ...]]]
    """Step -> the step to return to, and data positions to skip."""
    also_elsewhere: bool
    """Whether the other ranks order rollbacks as well; theirs do not count."""
    probes: frozenset[int]
    holds: frozenset[int]
    watches: dict[int, bool]
    """Step -> whether ranks begin or end to measure their own gradients."""
    nan: dict[int, int]
    """Step -> the rank whose loss is NaN."""
    leaves: tuple[int, int] | None
    """A rank that leaves the guard, and when."""
    breaks: int | None
    """The rank on which every restore fails half-way."""


def make_schedule(seed: int) -> Schedule:
    choice = random.Random(seed)

    def some(count: int) -> list[int]:
        return choice.sample(range(4, STEPS - 4), choice.randint(0, count))

    back: dict[int, tuple[int, tuple[int, ...]]] = {}
    for step in [*some(3), choice.randrange(12, STEPS - 6)]:
        skip = tuple(choice.sample(range(step), choice.randint(0, 2)))
        back[step] = (choice.randrange(step), skip)
    return Schedule(
        lag=choice.choice([0, 1, 2, 5]),
        back=back,
        also_elsewhere=choice.random() < 0.5,
        probes=frozenset(some(3)),
        holds=frozenset(some(2)),
        watches={step: choice.random() < 0.6 for step in some(3)},
        nan={step: choice.randrange(WORLD) for step in some(3)},
        leaves=(choice.randrange(WORLD), choice.randrange(8, STEPS - 4))
        if choice.random() < 0.2
        else None,
        breaks=choice.randrange(WORLD) if choice.random() < 0.25 else None,
    )


def follow(rank: int, schedule: Schedule, folder: Path) -> tuple[float, int, int, str]:
    """Train by the schedule; return the weights, the last step, the attempts and how it ended."""
    group = dist.new_group(list(range(WORLD)))
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = adamw(model.parameters())
    config = trimtab.Config().override(
        {"lag_steps": schedule.lag, "recover.snapshot_every": 3, "recover.oldest_steps": 24}
    )
    if schedule.breaks == rank:
        Snapshot.put = _fail  # type: ignore[method-assign] # in this process only
    guard: Any = trimtab.watch(
        model,
        optimizer,
        run_dir=folder / "run",
        mode="recover",
        config=config,
        batch_loss=lambda batch: loss_of(model.module, batch),
    )
    ticks, last, ended = 0, -1, ""
    losses: dict[int, float] = {}
    try:
        with guard:
            for step in guard.steps(batches(4 * STEPS, seed=rank)):
                if step.number == STEPS:
                    break
                order(rank, ticks, step.number, schedule, guard, losses)
                for batch in step:
                    is_bad = schedule.nan.get(ticks) == rank
                    loss = loss_of(model, batch) * (float("nan") if is_bad else 1.0)
                    guard.record(loss=loss, tokens=batch.numel())
                    loss.backward()
                guard.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses[step.number], last = loss.item(), step.number
                if schedule.leaves == (rank, ticks):
                    guard.close()
                ticks += 1
    except RestoreError as error:
        ended = str(error)
    except RuntimeError as error:  # a rank that failed is gone, and DDP says so
        ended = f"{type(error).__name__}"
    if ended:
        return 0.0, last, 0, ended
    return digest(model), last, guard.recovery.attempt, ended


def _fail(self: Snapshot, state: object) -> None:
    raise OSError("the memory of the snapshot cannot be read")


def order(
    rank: int, tick: int, step: int, schedule: Schedule, guard: Any, losses: dict[int, float]
) -> None:
    if tick in schedule.back and (rank == 0 or schedule.also_elsewhere):
        to, skip = schedule.back[tick]
        guard.rollback(to=min(to, step), skip=skip, hold=["lr"] if tick in schedule.holds else ())
    if tick in schedule.probes and step > 2:
        part = ProbeStep(step=step - 2, trained=losses[step - 2], positions=(step - 2,))
        guard.recovery.order(Order(to=None, probe=(part,)))
    if tick in schedule.watches:
        guard.recovery.order(Order(to=None, watch_ranks=schedule.watches[tick]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_go_back_alike_whatever_happens(seed: int, tmp_path: Path) -> None:
    schedule = make_schedule(seed)
    if schedule.breaks is not None:
        with pytest.raises(AssertionError) as raised:  # every rank ends, by an error
            run_ranks(follow_or_raise, WORLD, schedule, tmp_path, deadline=180.0)
        assert "hung" not in str(raised.value), schedule
        assert "failed half-way" in str(raised.value), schedule
        return
    ends = run_ranks(follow, WORLD, schedule, tmp_path, deadline=180.0)
    assert {ended for _, _, _, ended in ends} == {""}, schedule
    assert len({(last, attempts) for _, last, attempts, _ in ends}) == 1, schedule
    if not (schedule.leaves and schedule.nan):  # who left is not protected, so NaN may get in
        assert len({weights for weights, _, _, _ in ends}) == 1, schedule
    assert len(journal_of(tmp_path / "run")) > 0


def follow_or_raise(rank: int, schedule: Schedule, folder: Path) -> None:
    """The same where a restore fails: a rank that was left without the others must end too."""
    _, _, _, ended = follow(rank, schedule, folder)
    if ended:
        raise RuntimeError(ended)
