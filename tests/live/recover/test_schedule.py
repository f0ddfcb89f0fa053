"""Snapshots are as far apart as a share of the time of training asks for."""

import math
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from tests.kit.launch import run_ranks
from tests.kit.user_loop import take_step, watching
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab.live.measure.time_budget import StepClock, TimeBudget
from trimtab.live.recover.tracked_optimizer import SnapshotSchedule
from trimtab.state.snapshots import Snapshots

CPU = torch.device("cpu")


def snapshots_of(step_seconds: float, cost: float, every: int = 0, updates: int = 400) -> list[int]:
    """Return the updates after which snapshots are taken, two after the first rank has asked."""
    clock = StepClock()
    clock.seconds = step_seconds
    schedule = SnapshotSchedule(every, 2, TimeBudget(clock, 0.002), CPU)
    asked, taken = [], []
    for number in range(1, updates):
        if schedule.is_due(number):
            taken.append(number)
            schedule.start()
            schedule._stopwatch._seconds = cost
        if number - 2 in asked:
            schedule.add(number + 1)
        if schedule.pop_request(number):
            asked.append(number)
    return taken


@pytest.mark.parametrize(
    ("step_seconds", "cost", "interval"),
    [(1.0, 1e-6, 1), (1.0, 0.01, 5), (1.0, 0.1, 50), (0.001, 0.1, 100), (math.nan, 0.1, 10)],
)
def test_the_interval_follows_from_time(step_seconds: float, cost: float, interval: int) -> None:
    """After each update where it is free; at most 100 apart."""
    taken = snapshots_of(step_seconds, cost)
    assert taken[0] == 1
    assert taken[-1] - taken[-2] == interval


def test_one_of_two_snapshots_is_older_than_all_news() -> None:
    clock = StepClock()
    clock.seconds = 1.0
    schedule = SnapshotSchedule(0, 2, TimeBudget(clock, 0.002), CPU)
    schedule.spare_memory()
    schedule._stopwatch._seconds = 1e-6
    schedule.start()
    asked = [number for number in range(30) if schedule.pop_request(number)]
    assert asked[-1] - asked[-2] == 3


def test_a_number_of_updates_wins() -> None:
    assert snapshots_of(1.0, 0.1, every=7, updates=30) == [1, 7, 14, 21, 28]


def watched(folder: Path, rank: int) -> list[int]:
    """Train on a rank; each takes a step to be of another length."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    taken: list[int] = []
    take = Snapshots.take

    def note(self: Snapshots, which: int, step: int) -> bool:
        taken.append(step)
        return take(self, which, step)

    seconds = property(lambda self: 0.5 + 50.0 * rank, lambda self, value: None)
    with (
        mock.patch.object(Snapshots, "take", note),
        mock.patch.object(StepClock, "seconds", seconds, create=True),
        watching(folder, "recover", model=model) as run,
    ):
        for _ in range(60):
            take_step(run.guard, run.optimizer, model(torch.randn(4, 8)).square().mean())
    return taken


def test_all_ranks_copy_at_the_same_updates(tmp_path: Path) -> None:
    first, second = run_ranks(partial(watched, tmp_path), 2)
    assert first == second
    assert len(first) > 3
