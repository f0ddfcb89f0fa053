"""Random schedules on four ranks: who leaves, is slow, has a bug or a flipped bit, and when."""

import contextlib
import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.parallel import DistributedDataParallel

import trimtab
from tests.kit.launch import digest, run_ranks
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import adamw
from trimtab.live.recover.audit import StateAudit

WORLD = 4
STEPS = 30


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What happens at which step, and on which rank; the same on all ranks."""

    mode: str
    lag: int
    nan: dict[int, int]
    """Step -> the rank whose loss is NaN."""
    unrecorded: dict[int, tuple[int, ...]]
    """Step -> the ranks that do not record."""
    skipped: frozenset[int]
    """Steps that all ranks leave out after they have recorded them."""
    leaves: tuple[int, int] | None
    """A rank that leaves the guard, and when."""
    terminated: int | None
    """From this step on every rank has received SIGTERM, each a step after the one before."""
    saves: frozenset[int]
    """Steps at which an asynchronous checkpoint begins."""
    reduces: bool
    """Whether a thread of each rank adds up numbers on the default group."""
    flips: dict[int, int]
    """Step -> the rank of which a bit of a weight flips."""
    orders: dict[int, int]
    """Step -> the updates that the first rank asks to undo."""
    slow: dict[int, int]
    """Step -> the rank that takes its time."""
    bug: tuple[int, int] | None
    """A rank on which trimtab's audit fails, and from when."""

    @property
    def is_harmed_at(self) -> int:
        """The last step at which a rank may have other weights until they are restored."""
        return max(self.flips, default=-1)


def make_schedule(seed: int) -> Schedule:
    choice = random.Random(seed)

    def some(count: int) -> list[int]:
        return choice.sample(range(2, STEPS - 6), choice.randint(0, count))

    return Schedule(
        mode=choice.choice(["observe", "protect", "recover", "recover", "recover"]),
        lag=choice.choice([0, 1, 2, 5]),
        nan={step: choice.randrange(WORLD) for step in some(4)},
        unrecorded={
            step: tuple(choice.sample(range(WORLD), choice.randint(1, WORLD))) for step in some(4)
        },
        skipped=frozenset(some(2)),
        leaves=choice.choice([None, (choice.randrange(WORLD), choice.randrange(4, STEPS - 4))]),
        terminated=choice.choice([None, choice.randrange(6, STEPS - WORLD - 2)]),
        saves=frozenset(some(3)),
        reduces=choice.random() < 0.5,
        flips={
            step: choice.randrange(WORLD)
            for step in choice.sample(range(14, STEPS - 12), choice.randint(0, 2))
        },
        orders={step: choice.randint(1, 6) for step in some(2)},
        slow={step: choice.randrange(WORLD) for step in some(3)},
        bug=choice.choice([None, None, (choice.randrange(WORLD), choice.randrange(2, STEPS - 4))]),
    )


def follow(rank: int, schedule: Schedule, folder: Path) -> tuple[float, int, int]:
    """Train by the schedule; return the weights, the last step, and wrong sums of the thread."""
    wanted: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: wanted.append(number))
    group = dist.new_group(list(range(WORLD)))
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = adamw(model.parameters())
    config = trimtab.Config.from_dict(
        {"live": {"lag_steps": schedule.lag}, "recover": {"snapshot_every": 3}}
    )
    guard: Any = trimtab.watch(
        model, optimizer, run_dir=folder / "run", mode=schedule.mode, config=config
    )
    reducer = Reducer() if schedule.reduces else None
    saving: Any = None
    last = -1
    with contextlib.ExitStack() as stack:
        stack.enter_context(guard)
        for step, batch in enumerate(batches(STEPS, seed=rank)):
            if step in schedule.saves and not schedule.reduces:
                if saving is not None:
                    saving.result()
                state = {"model": model.module.state_dict()}
                saving = async_save(state, checkpoint_id=folder / f"save{step}")
            if schedule.terminated is not None and step == schedule.terminated + rank:
                os.kill(os.getpid(), signal.SIGTERM)
            if schedule.bug is not None and schedule.bug == (rank, step):
                StateAudit.audit = fail  # type: ignore[method-assign, assignment]
            if schedule.slow.get(step) == rank:
                time.sleep(0.1)
            take(rank, step, batch, schedule, guard, model, optimizer)
            last = step
            if schedule.leaves == (rank, step):
                stack.close()
            if step % 6 == 5 and agree_to_stop(wanted, group):
                break
        if saving is not None:
            saving.result()
    wrong = reducer.stop() if reducer else 0
    return digest(model), last, wrong


def take(
    rank: int, step: int, batch: torch.Tensor, schedule: Schedule, guard: Any, model: Any, opt: Any
) -> None:
    is_bad = schedule.nan.get(step) == rank and schedule.mode != "observe"
    loss = loss_of(model, batch) * (float("nan") if is_bad else 1.0)
    if rank not in schedule.unrecorded.get(step, ()):
        guard.record(loss=loss, tokens=batch.numel())
    if step not in schedule.skipped:
        loss.backward()
        guard.clip_grad_norm_(1.0)
        if schedule.flips.get(step) == rank and schedule.mode == "recover":
            weight = next(model.parameters()).detach().numpy()
            weight.reshape(-1).view(np.uint32)[7] ^= np.uint32(1 << 27)
        if step in schedule.orders and rank == 0:
            guard.undo(schedule.orders[step])
        opt.step()
        opt.zero_grad()


def fail(audit: Any, *given: Any) -> Any:
    raise ZeroDivisionError("planted")


def agree_to_stop(wanted: list[int], group: Any) -> bool:
    flag = torch.tensor(float(len(wanted)))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    return bool(flag > 0)


class Reducer:
    """A thread that adds up numbers on the default group, as often on every rank."""

    def __init__(self) -> None:
        self._wrong = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in range(60):
            values = torch.full((7,), float(number))
            dist.all_reduce(values)
            self._wrong += bool((values != WORLD * number).any())

    def stop(self) -> int:
        self._thread.join()
        return self._wrong


def check_agreement(seed: int, tmp_path: Path) -> None:
    """Follow a schedule; raises AssertionError if ranks end or decide differently."""
    schedule = make_schedule(seed)
    ends = run_ranks(follow, WORLD, schedule, tmp_path, deadline=240.0)
    steps = {last for _, last, _ in ends}
    assert len(steps) == 1, schedule
    assert all(wrong == 0 for _, _, wrong in ends), schedule
    is_guarded = schedule.leaves is None and schedule.bug is None
    may_differ = schedule.mode != "observe" and (
        # Who left is not protected, so NaN may get in, and nothing is undone any more.
        (not is_guarded and bool(schedule.nan or schedule.flips))
        # The run may end before a flip is undone.
        or min(steps) < schedule.is_harmed_at + schedule.lag + len(schedule.skipped) + 3
    )
    if not may_differ:
        assert len({weights for weights, _, _ in ends}) == 1, schedule
    assert len(journal_of(tmp_path / "run")) > 0
