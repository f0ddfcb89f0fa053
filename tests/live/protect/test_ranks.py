"""All ranks decide alike at every step, whatever is wrong on one of them."""

import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import some_of
from tests.kit.threads import run_threads
from tests.kit.tiny import batches, journal_of, loss_of
from tests.kit.tiny import make_model as make_tiny
from tests.kit.traffic import MAX_BYTES, MAX_COLLECTIVES, traffic
from tests.kit.user_loop import NAN, take_step
from tests.live.protect.made_up import FAULTS, break_step, give_gradients, make_model
from tests.live.protect.test_do_no_harm import ELSEWHERE, IN_THE_GATE, IN_THE_NUMBERS
from tests.live.test_do_no_harm import planted
from tests.live.test_ranks import ENGINES
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import trimtab
from trimtab.core.config import Config, LiveConfig
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.live.ranks.exchange import value_and_rank, with_rank
from trimtab.state.host_copy import local


class TestRankVote:
    @pytest.mark.parametrize("rank", [0, 1, 16383])
    @pytest.mark.parametrize(
        "value", [0.0, -0.0, 1.5, -1.5, 1e-40, 3.4e38, float("inf"), -float("inf")]
    )
    def test_a_value_and_its_rank_come_back(self, value: float, rank: int) -> None:
        number = torch.tensor([value])
        assert value_and_rank(with_rank(number, rank)).tolist() == [number.item(), rank]

    def test_they_sort_as_the_values_do_and_nan_is_above_all(self) -> None:
        values = [-float("inf"), -2.0, -1e-30, 0.0, 1e-30, 2.0, float("inf")]
        owned = [int(with_rank(torch.tensor([value]), 5)) for value in values]
        assert owned == sorted(owned)
        assert len(set(owned)) == len(owned)
        for bits in (0x7FC00000, -0x400000):  # a NaN of either sign
            nan = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
            assert nan.isnan()
            assert int(with_rank(nan, 0)) > owned[-1]
            assert value_and_rank(with_rank(nan, 3)).isnan().tolist() == [True, False]


@dataclass
class Schedule:
    """What goes wrong when and where."""

    steps: int
    faults: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By step: on which rank, and what."""
    bugs: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By rank: from which step on, and in which function of ours."""
    delays: dict[tuple[int, int], float] = field(default_factory=dict)
    """By rank and step, in seconds."""
    lag: int = 2


def draw(seed: int, world: int, steps: int, *, bugs: bool = True) -> Schedule:
    """A schedule that nobody has thought of."""
    dice = random.Random(seed)
    places = [*IN_THE_GATE, *IN_THE_NUMBERS, *ELSEWHERE]
    number_of_bugs = dice.choice([0, 1, 1, 2]) if bugs else 0
    return Schedule(
        steps=steps,
        faults={
            step: (dice.randrange(world), dice.choice(FAULTS))
            for step in dice.sample(range(steps), dice.randint(0, steps // 3))
        },
        bugs={
            dice.randrange(world): (dice.randrange(steps), dice.choice(places))
            for _ in range(number_of_bugs)
        },
        delays={
            (dice.randrange(world), dice.randrange(steps)): dice.random() * 0.01 for _ in range(4)
        },
        lag=dice.choice([0, 1, 2, 5]),
    )


here = threading.local()
"""Which rank a thread is, and at which step."""


def plant(schedule: Schedule) -> ExitStack:
    """Put the bugs in place, before there are ranks."""
    stack = ExitStack()
    for rank, (since, place) in schedule.bugs.items():

        def is_due(rank: int = rank, since: int = since) -> bool:
            return getattr(here, "rank", None) == rank and here.step >= since

        stack.enter_context(planted(place, is_due))
    return stack


def follow(rank: int, schedule: Schedule, folder: Path) -> tuple[list[bool], list[int]]:
    """Train by the schedule; returns which steps were taken, and the weights' bits at the end."""
    model = make_model()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    config = Config(live=LiveConfig(lag_steps=schedule.lag, telemetry_every=4))
    taken = []
    with trimtab.watch(model, optimizer, run_dir=folder, mode="protect", config=config) as guard:
        for step in range(schedule.steps):
            here.rank, here.step = rank, step
            time.sleep(schedule.delays.get((rank, step), 0.0))
            give_gradients(model, step)
            loss = 1.0
            if schedule.faults.get(step, (None,))[0] == rank:
                loss = break_step(model, schedule.faults[step][1], step)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # as DDP does, so all have the same gradients
            guard.record(loss=loss)
            guard.clip_grad_norm_(0.5)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            taken.append(
                not all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
            )
    return taken, bits(model)


def bits(model: nn.Module) -> list[int]:
    """The weights that this rank holds, as whole numbers: so NaN is equal to itself."""
    parts = [local(parameter.detach()).float().view(-1) for parameter in model.parameters()]
    numbers: list[int] = torch.cat(parts).view(torch.int32).tolist()
    return numbers


def check_agreement(results: list[Any], schedule: Schedule) -> None:
    # A fault that gets through after a bug of ours is a NaN on every rank.
    assert all(result == results[0] for result in results), schedule
    if not schedule.bugs:
        expected = [step not in schedule.faults for step in range(schedule.steps)]
        assert results[0][0] == expected, schedule


def check_schedules(seeds: range, runner: Any, folder: Path, steps: int) -> None:
    for seed in seeds:
        world = 2 + seed % 3
        schedule = draw(seed, world, steps)
        with plant(schedule):
            results = runner(follow, world, schedule, folder / str(seed))
        check_agreement(results, schedule)


def test_random_schedules_on_threads(tmp_path: Path) -> None:
    check_schedules(range(6), run_threads, tmp_path, steps=14)


@pytest.mark.parametrize("seed", some_of([2, 3], 3))
def test_random_schedules_on_real_ranks(seed: int, tmp_path: Path) -> None:
    check_schedules(range(seed, seed + 1), run_ranks, tmp_path, steps=14)


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_bug_in_the_gate_ends_protection_everywhere_and_watching_nowhere(
    failing_rank: int, tmp_path: Path
) -> None:
    bug = (5, "trimtab.live.protect.rule.Rule.judge")
    schedule = Schedule(
        steps=14,
        faults={2: (0, "nan gradient"), 5: (0, "nan loss"), 9: (1, "nan loss")},
        bugs={failing_rank: bug},
    )
    with plant(schedule):
        results = run_threads(follow, 2, schedule, tmp_path)
    # The step in which it fails is taken everywhere, and so are those behind it.
    assert [taken for taken, _ in results] == [[step != 2 for step in range(14)]] * 2
    block = journal_of(tmp_path)
    assert len(block) == 14
    assert block.column("param_norm").present[[0, 4, 8, 12]].all()
    discarded = block.column("discarded")
    assert [n for n in range(14) if discarded.values[n] == 1] == [2]
    assert not discarded.present[8:].any()  # two steps after it failed all have parted
    assert [e.kind for e in block.events].count("trimtab failed") == 1


def mixed_and_offloaded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=False)
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    return model


WRAPS = {**ENGINES, "fsdp2 bf16 offloaded": mixed_and_offloaded}


def protect_real(rank: int, engine: str, schedule: Schedule, folder: Path) -> Any:
    """Train a real model under a real engine; faults hit the forward pass of one rank."""
    model = WRAPS[engine](make_tiny())
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    decisions = []
    with trimtab.watch(model, optimizer, run_dir=folder, mode="protect") as guard:
        sync = guard._monitor.sync.ranks  # type: ignore[union-attr]
        vote = sync.vote

        def counting(*args: Any) -> Any:
            decisions.append(int(outcome := vote(*args)))
            return outcome

        sync.vote = counting  # type: ignore[method-assign]
        for step, batch in enumerate(batches(schedule.steps, seed=10 + rank)):
            loss = loss_of(model, batch)
            culprit, fault = schedule.faults.get(step, (None, ""))
            if culprit == rank:
                loss = loss * float(fault.split()[0])
            take_step(guard, optimizer, loss, clip=1.0, tokens=batch.numel())
        assert not guard._monitor.gate.shield.is_down  # type: ignore[union-attr]
    is_finite = all(torch.isfinite(local(p.detach())).all() for p in model.parameters())
    count = int(optimizer.state_dict()["state"][0]["step"])
    return decisions, count, is_finite, bits(model)


def check_engine(engine: str, world: int, steps: int, folder: Path) -> None:
    schedule = draw(world, world, steps, bugs=False)
    results = run_ranks(protect_real, world, engine, schedule, folder)
    expected = [int(step in schedule.faults) for step in range(steps)]
    for result in results:
        assert result[:3] == (expected, steps - len(schedule.faults), True)
    # Who holds the same part must hold the same bits: all under DDP, each second rank under HSDP.
    same = {"ddp": range(1, world), "hsdp": (2,)}.get(engine, ())
    for rank in same:
        assert results[0] == results[rank]
    block = journal_of(folder)
    assert block.column("discarded").values.tolist() == expected
    culprits = {
        event.step: event.facts["rank_of_largest_loss"]
        for event in block.events
        if event.kind == "step discarded"
    }
    for step, (rank, fault) in schedule.faults.items():
        if fault.startswith("nan"):
            assert culprits[step] == rank


@pytest.mark.parametrize(
    ("engine", "world", "steps"),
    [("ddp", 2, 40), ("fsdp2", 2, 20), ("hsdp", 4, 12), ("fsdp2 bf16 offloaded", 2, 12)],
)
def test_engines(engine: str, world: int, steps: int, tmp_path: Path) -> None:
    check_engine(engine, world, steps, tmp_path)


def passed_over(rank: int, folder: Path) -> bool:
    """GradScaler passes over the optimizer of one rank alone: no rank may wait for it for ever."""
    model = make_model()
    optimizer = optim.RMSprop(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with trimtab.watch(
        model, optimizer, run_dir=folder, mode="protect", state={"scaler": scaler}
    ) as guard:
        for step in range(12):
            scaler.scale(torch.zeros(()))
            guard.record(loss=NAN if rank == 0 and step == 6 else 1.0)
            give_gradients(model, step)
            if rank == 1 and step in (3, 4, 9):
                break_step(model, "inf gradient", step)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return guard._monitor.sync.ranks.has_left  # type: ignore[union-attr]


def test_ranks_that_are_at_different_steps_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_threads(passed_over, 2, tmp_path) == [True, True]
    assert "ranks are at different steps" in caplog.text


@pytest.mark.parametrize("world", some_of([2, 64, 16384], 16384))
def test_two_collectives_and_few_bytes_a_step_at_any_world_size(world: int, tmp_path: Path) -> None:
    counted = traffic(world, tmp_path, num_blocks=40, steps=21)
    assert all(len(step) == MAX_COLLECTIVES for step in counted.steps)
    assert counted.max_bytes <= MAX_BYTES
    # The same bytes at every step, so that no rank can ever send more than another.
    assert len({tuple(step) for step in counted.steps}) == 1
