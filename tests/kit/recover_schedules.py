"""Random schedules of rollbacks, probes, faults, delays and bugs on four ranks that recover."""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import trimtab
from tests.kit.launch import digest, run_ranks
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import adamw
from trimtab.core.errors import RestoreError
from trimtab.live.recover.order import Order, ProbeStep
from trimtab.state.snapshot import Snapshot

WORLD = 4
STEPS = 40
DEADLINE_SECONDS = 180.0
DELAY_SECONDS = 0.05
BUGS = ("snapshot", "decision", "probe")

Ending = tuple[float, int, int, str]
"""The weights, the last step, the attempts, and how it ended."""


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
    delays: dict[int, int]
    """Step -> the rank that comes late."""
    bug: tuple[str, int, int] | None
    """A part of trimtab that raises, on which rank, from which step on."""


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
        delays={step: choice.randrange(WORLD) for step in some(3)},
        bug=(choice.choice(BUGS), choice.randrange(WORLD), choice.randrange(4, STEPS))
        if choice.random() < 0.3
        else None,
    )


def follow(rank: int, schedule: Schedule, folder: Path) -> Ending:
    """Train by the schedule."""
    torch.manual_seed(rank)
    group = dist.new_group(list(range(WORLD)))
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = adamw(model.parameters())
    config = trimtab.Config().override(
        {"lag_steps": schedule.lag, "recover.snapshot_every": 3, "recover.oldest_steps": 24}
    )
    if schedule.breaks == rank:
        Snapshot.put = _fail  # type: ignore[method-assign] # this process ends by it
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
                if schedule.delays.get(ticks) == rank:
                    time.sleep(DELAY_SECONDS)
                if schedule.bug is not None and schedule.bug[1:] == (rank, ticks):
                    _break(guard.recovery, schedule.bug[0])
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
        ended = f"{type(error).__name__}: {error}"[:500]
    if ended:
        return 0.0, last, 0, ended
    return digest(model), last, guard.recovery.attempt, ended


def _fail(self: Snapshot, state: object) -> None:
    raise OSError("the memory of the snapshot cannot be read")


def _break(recovery: Any, part: str) -> None:
    """Let a part of trimtab raise from now on, as a bug in it would."""

    def fail(*_: object) -> None:
        raise KeyError(f"a bug in {part}")

    if part == "snapshot":
        recovery.snapshots.take_if_due = fail
    elif part == "decision" and recovery.controller is not None:
        recovery.controller.look = fail
    elif part == "probe":
        recovery._probe._losses = fail


def order(
    rank: int, tick: int, step: int, schedule: Schedule, guard: Any, losses: dict[int, float]
) -> None:
    if tick in schedule.back and (rank == 0 or schedule.also_elsewhere):
        to, skip = schedule.back[tick]
        guard.rollback(to=min(to, step), skip=skip, hold=["lr"] if tick in schedule.holds else ())
    if tick in schedule.probes and step - 2 in losses:
        part = ProbeStep(step=step - 2, trained=losses[step - 2], positions=(step - 2,))
        guard.recovery.order(Order(to=None, probe=(part,)))
    if tick in schedule.watches:
        guard.recovery.order(Order(to=None, watch_ranks=schedule.watches[tick]))


def follow_all(rank: int, seeds: list[int], folder: Path) -> list[Ending]:
    """Several schedules, one after the other, in the same processes."""
    ends = []
    for seed in seeds:
        ends.append(follow(rank, make_schedule(seed), folder / str(seed)))
        if ends[-1][3]:  # the other ranks would wait for this one in the next schedule
            raise RuntimeError(f"schedule {seed}: {ends[-1][3]}")
    return ends


def follow_or_raise(rank: int, schedule: Schedule, folder: Path) -> None:
    """The same where a restore fails: a rank that was left without the others must end too."""
    _, _, _, ended = follow(rank, schedule, folder)
    if ended:
        raise RuntimeError(ended)


def require_agreement(schedule: Schedule, ends: list[Ending], folder: Path) -> None:
    """Every rank came to the end, with the same weights after the same steps."""
    assert {ended for _, _, _, ended in ends} == {""}, schedule
    assert len({(last, attempts) for _, last, attempts, _ in ends}) == 1, schedule
    if not (schedule.leaves and schedule.nan):  # who left is not protected, so NaN may get in
        assert len({weights for weights, _, _, _ in ends}) == 1, schedule
    assert len(journal_of(folder / "run")) > 0


def require_all_end(schedule: Schedule, folder: Path) -> None:
    """Where a restore fails half-way on a rank, every rank ends by an error that says so."""
    text = ""
    try:
        run_ranks(follow_or_raise, WORLD, schedule, folder, deadline=DEADLINE_SECONDS)
    except AssertionError as raised:
        text = str(raised)
    assert "hung" not in text, schedule
    # Without an error every rollback was refused, so that no restore could fail.
    assert not text or "failed half-way" in text, schedule
    assert not text or "restart from the last checkpoint" in text, schedule
