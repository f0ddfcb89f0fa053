"""Ranks that come too late at the moment of a bad step, and ranks that step unequally often.

Each rank trains four times: twice without a guard, with the bad step and without it, once with a
guard and nobody late, and then by the schedule. After the last one all ranks must have the state of
one and the same of the first three, or equal states, or the run must have ended with a sentence.
"""

import hashlib
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import trimtab
from tests.kit.launch import End, ends_of_ranks, log_of_trimtab, meet
from tests.kit.user_loop import adamw
from trimtab.core.config import Config
from trimtab.core.errors import NonFiniteRun, RunStopped
from trimtab.state.host_copy import local

WIDTH = 8
ENGINES = ("replicas", "ddp", "fsdp2")
FINITE_HISTORY = 40
"""Steps before a finite bad batch: the gate judges none before it has seen 32."""
FINITE_FACTOR = 1e5
DEADLINE_SECONDS = 60.0
"""For all ranks together; the runs take about five seconds."""


@dataclass(frozen=True, kw_only=True)
class LateSchedule:
    """Who is late when, and whose numbers are bad when; the same on all ranks."""

    engine: str
    mode: str
    world: int
    late_rank: int
    bad_rank: int
    numbers: str
    """What is bad: the recorded "loss" of one rank; its "gradient", after ranks have averaged
    theirs; or its "batch" or "finite batch", so that the average brings NaN, or a large gradient,
    to all ranks."""
    offset: int = 0
    """Steps from the late one to the bad one."""
    timeout_seconds: float = 1.0
    late_seconds: float = 2.5
    is_late_in_forward: bool = False
    """Whether it is late before gradients are averaged, where the others wait for it anyway."""
    lag: int = 1

    @property
    def late_step(self) -> int:
        return FINITE_HISTORY + 2 if self.numbers == "finite batch" else 8

    @property
    def bad_step(self) -> int:
        return self.late_step + self.offset

    @property
    def steps(self) -> int:
        return self.late_step + 6


def draw_schedule(seed: int) -> LateSchedule:
    """Draw a schedule that nobody has thought of."""
    choice = random.Random(seed)
    world = choice.choice([2, 2, 4])
    seconds = choice.uniform(1.0, 2.0)
    return LateSchedule(
        engine=choice.choice(ENGINES),
        mode=choice.choice(["protect", "recover"]),
        world=world,
        late_rank=choice.randrange(world),
        bad_rank=choice.randrange(world),
        numbers=choice.choice(["loss", "loss", "gradient", "gradient", "batch", "finite batch"]),
        offset=choice.choice([-1, 0, 0, 0, 0, 1]),
        timeout_seconds=seconds,
        # About the time-out, where some ranks may still have got an answer, or far beyond it.
        late_seconds=seconds * choice.choice([1.0, 1.05, 1.5, 2.0]),
        is_late_in_forward=choice.random() < 0.1,
        lag=choice.choice([0, 1, 2]),
    )


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a rank's loop ended."""

    kind: str
    """finished, sentence, distributed, or other for any other exception."""
    message: str = ""
    state: str = ""
    """A checksum of its weights and of its optimizer."""
    references: dict[str, str] = field(default_factory=dict)
    """The same after each of the other runs."""
    log: tuple[str, ...] = ()
    """Warnings and errors of trimtab."""
    seconds: float = 0.0


def follow_schedule(rank: int, schedule: LateSchedule, folder: Path, meeting: Path) -> Ending:
    """Train by the schedule on one rank."""
    meet(rank, schedule.world, meeting)
    references = {
        "applied": LateLoop(rank, schedule).train(),
        "left out": LateLoop(rank, schedule, leaves_out=True).train(),
        "in time": LateLoop(rank, schedule, folder=folder / "in time", is_in_time=True).train(),
    }
    dist.barrier()  # all start together: only the schedule makes a rank late
    started = time.monotonic()
    kind, message, state = "finished", "", ""
    with log_of_trimtab() as said:
        try:
            state = LateLoop(rank, schedule, folder=folder / "late").train()
        except Exception as error:
            kind, message = kind_of_error(error), f"{type(error).__name__}: {error}"[:500]
    return Ending(
        kind=kind,
        message=message,
        state=state,
        references=references,
        log=tuple(said),
        seconds=time.monotonic() - started,
    )


def kind_of_error(error: BaseException) -> str:
    """Return whether trimtab ended the run by a sentence, or torch because a rank was gone."""
    if isinstance(error, RunStopped | NonFiniteRun):
        return "sentence"
    words = ("gloo", "connection", "timed out", "timeout", "peer")
    is_distributed = isinstance(error, RuntimeError) and any(
        word in str(error).lower() for word in words
    )
    return "distributed" if is_distributed else "other"


class LateLoop:
    """A training loop on one rank; without a folder nobody watches it."""

    def __init__(
        self,
        rank: int,
        schedule: LateSchedule,
        *,
        folder: Path | None = None,
        is_in_time: bool = False,
        leaves_out: bool = False,
    ) -> None:
        self._rank = rank
        self._schedule = schedule
        self._is_in_time = is_in_time or folder is None
        self._leaves_out = leaves_out
        torch.manual_seed(0)
        self._inner = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH))
        self._model: nn.Module = self._inner
        if schedule.engine == "ddp":
            self._model = DistributedDataParallel(self._inner)
        elif schedule.engine == "fsdp2":
            fully_shard(self._inner, mesh=init_device_mesh("cpu", (schedule.world,)))
        self._optimizer = adamw(self._inner.parameters())
        seconds = 30.0 if self._is_in_time else schedule.timeout_seconds
        self._guard: Any = trimtab.watch(
            self._model,
            self._optimizer,
            run_dir=folder or "unused",
            mode=schedule.mode,
            config=Config().override(
                {
                    "live.rank_timeout_seconds": seconds,
                    "live.lag_steps": schedule.lag,
                    "recover.snapshot_every": 3,
                }
            ),
            enabled=folder is not None,
        )

    def train(self) -> str:
        """Return a checksum of the state that this rank ends with."""
        with self._guard:
            for step in range(self._schedule.steps):
                self._take(step)
        return state_of(self._inner, self._optimizer)

    def _take(self, step: int) -> None:
        schedule = self._schedule
        is_late = step == schedule.late_step and self._rank == schedule.late_rank
        is_late = is_late and not self._is_in_time
        if is_late and schedule.is_late_in_forward:
            time.sleep(schedule.late_seconds)
        generator = torch.Generator().manual_seed(1000 * step + self._rank)
        batch = torch.randn(4, WIDTH, generator=generator)
        loss = (self._model(batch) - batch.flip(1)).pow(2).mean()
        is_bad = step == schedule.bad_step and self._rank == schedule.bad_rank
        numbers = schedule.numbers if is_bad else ""
        loss = loss * {"batch": float("nan"), "finite batch": FINITE_FACTOR}.get(numbers, 1.0)
        self._guard.record(loss=loss * float("nan") if numbers == "loss" else loss)
        loss.backward()
        if schedule.engine == "replicas":
            for parameter in self._inner.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(schedule.world)
        if numbers == "gradient":
            for parameter in self._inner.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).fill_(float("nan"))
        if is_late and not schedule.is_late_in_forward:
            time.sleep(schedule.late_seconds)
        if not (self._leaves_out and step == schedule.bad_step):
            self._optimizer.step()
        self._optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A checksum of what this rank holds of weights and optimizer; every NaN counts as the same."""
    checksum = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        slots = optimizer.state.get(parameter, {})
        for value in (parameter.detach(), *(slots[name] for name in sorted(slots))):
            number = local(value).float()
            number = torch.where(number.isnan(), float("nan"), number)
            checksum.update(number.contiguous().numpy().tobytes())
    return checksum.hexdigest()


def broken_promise(schedule: LateSchedule, ends: list[End]) -> str:
    """What the ranks have done that they must not; empty if nothing."""
    for rank, end in enumerate(ends):
        if end.code is None:
            return f"rank {rank} hung"
        if end.result is None:
            return f"rank {rank} ended with code {end.code}: {end.error[-500:]}"
    endings: list[Ending] = [end.result for end in ends]
    if all(ending.kind == "finished" for ending in endings):
        return "" if _agree(schedule, endings) else "ranks ended with different states, silently"
    return _wrong_end(schedule, endings)


def _agree(schedule: LateSchedule, endings: list[Ending]) -> bool:
    is_whole = schedule.engine != "fsdp2"  # each rank has all weights
    if is_whole and len({ending.state for ending in endings}) == 1:
        return True
    names = endings[0].references
    return any(all(one.state == one.references[name] for one in endings) for name in names)


def _wrong_end(schedule: LateSchedule, endings: list[Ending]) -> str:
    for rank, ending in enumerate(endings):
        if ending.kind == "other":
            return f"rank {rank} raised {ending.message}"
    kinds = [ending.kind for ending in endings]
    if "sentence" not in kinds:
        return f"the run ended without a sentence: {kinds}"
    is_on_all = "batch" in schedule.numbers
    if not is_on_all and kinds[schedule.bad_rank] != "sentence":
        return f"the rank with bad numbers ended without a sentence: {kinds}"
    return ""


def follow_late_schedule(schedule: LateSchedule, folder: Path) -> list[End]:
    return ends_of_ranks(
        follow_schedule,
        schedule.world,
        schedule,
        folder,
        deadline=DEADLINE_SECONDS + 3 * schedule.late_seconds,
        join=False,
    )


# Ranks that step unequally often.

OUTER_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class LocalEnding:
    """How a rank of local SGD ended."""

    updates: int
    is_same: bool
    """Whether its weights are those of the same loop without a guard."""
    log: tuple[str, ...]
    seconds: float


def inner_steps(rank: int) -> int:
    """How many steps a rank takes between two averages: 4 and 6 on two ranks."""
    return 4 + 2 * rank


def local_sgd(rank: int, mode: str, folder: Path) -> LocalEnding:
    """Train with local SGD, as DiLoCo does: weights are averaged after a few steps of each rank."""
    bare, _ = _train_locally(rank, mode, None)
    dist.barrier()
    started = time.monotonic()
    with log_of_trimtab() as said:
        watched, updates = _train_locally(rank, mode, folder)
    return LocalEnding(
        updates=updates,
        is_same=bare == watched,
        log=tuple(said),
        seconds=time.monotonic() - started,
    )


def _train_locally(rank: int, mode: str, folder: Path | None) -> tuple[str, int]:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = adamw(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    updates = 0
    guard: Any = trimtab.watch(
        model, optimizer, run_dir=folder or "unused", mode=mode, enabled=folder is not None
    )
    with guard:
        for _ in range(OUTER_STEPS):
            for _ in range(inner_steps(rank)):
                batch = torch.randn(4, WIDTH, generator=generator)
                loss = (model(batch) - batch.flip(1)).pow(2).mean()
                guard.record(loss=loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
    return state_of(model, optimizer), updates
