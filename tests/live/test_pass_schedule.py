"""Telemetry costs a share of the time, no single step much, and the same updates on all ranks."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.launch import run_ranks
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import steps_with, watching
from torch.nn.parallel import DistributedDataParallel

from trimtab.live.measure import pass_schedule, telemetry, time_budget
from trimtab.live.measure.pass_schedule import GRID, SHARE, PassCost, PassSchedule, Plan
from trimtab.live.measure.state_sums import StateSums
from trimtab.live.measure.time_budget import LONGEST_SHARE, StepClock, Stopwatch

LAG = 3
"""Updates from the end of a pass to the arrival of its sums."""


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def take(self, clock: StepClock, seconds: float, after: float = 0.0) -> None:
        """Let a step pass, and what is measured after its update."""
        self.now += seconds
        clock.update_ended()
        self.now += after
        clock.step_ended()


@pytest.fixture
def clock_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(time_budget, "time", found)
    monkeypatch.setattr(time_budget, "_thread", threading.local())
    return found


def test_evaluations_pauses_and_measurements_are_no_part_of_a_step(clock_time: Time) -> None:
    clock = StepClock()
    for step in range(64):
        clock_time.take(clock, 30.0 if step % 8 == 7 else 0.5, after=0.2)
    assert clock.seconds == pytest.approx(0.5)


def test_loops_that_take_turns_are_measured_without_each_other(clock_time: Time) -> None:
    first, second = StepClock(), StepClock()
    for _ in range(16):
        clock_time.take(first, 0.5)
        clock_time.take(second, 3.0)
    assert first.seconds == pytest.approx(0.5)
    assert second.seconds == pytest.approx(3.0)


class Loop:
    """A training loop whose steps and passes take a given time."""

    def __init__(
        self, time: Time, *, every: int = 0, step: float = 0.1, cost: float = 0.02
    ) -> None:
        self._time = time
        self._clock = StepClock()
        self._schedule = PassSchedule(every, self._clock)
        self._step, self._cost = 0.1, cost
        self.begun: list[int] = []
        self.whole: list[int] = []
        self.spent: list[float] = []
        """Seconds of telemetry in each step."""

    def run(self, updates: int, pauses: tuple[int, ...] = ()) -> None:
        """Train; a pause makes a step a thousand times as long."""
        plan, cost, left = Plan(updates=0, slices=0, is_whole=False), PassCost(0.0), 0
        arrivals: dict[int, Plan] = {}
        for update in range(updates):
            self._time.now += self._step * (1000 if update in pauses else 1)
            if update in arrivals:
                self._schedule.adopt(arrivals.pop(update), update)
            self._clock.update_ended()
            before = self._time.now
            if self._schedule.is_due(update):
                plan = self._schedule.begin(update)
                cost, left = PassCost(0.0), max(plan.slices, 1)
                if plan.slices:
                    self.begun.append(update)
                    self.whole += [update] if plan.is_whole else []
            if left:
                self._measure(plan, cost, is_first=not self.begun[1:])
                left -= 1
                if not left:
                    if plan.slices:
                        self._schedule.end(plan, cost)
                    arrivals[update + LAG] = self._schedule.propose(most_slices=1000)
            self.spent.append(self._time.now - before)
            self._clock.step_ended()

    def _measure(self, plan: Plan, cost: PassCost, *, is_first: bool) -> None:
        watch = Stopwatch(torch.device("cpu"))
        watch.start()
        if plan.slices:
            whole = self._cost * (2 if plan.is_whole else 1) * (1.5 if is_first else 1)
            self._time.now += whole / plan.slices
        watch.stop()
        cost.watches.append(watch)


@pytest.mark.parametrize("cost", [0.0001, 0.001, 0.02, 0.2])
def test_the_share_of_the_time_is_kept_and_no_step_is_much_longer(
    clock_time: Time, cost: float
) -> None:
    loop = Loop(clock_time, cost=cost)
    loop.run(40_000)
    assert sum(loop.spent[1:]) <= SHARE * 0.1 * 40_000
    assert max(loop.spent[1:]) <= LONGEST_SHARE * 0.1 * 1.001
    assert not any(update % GRID for update in loop.begun)
    assert len(loop.begun) > 4


def test_what_is_cheap_is_measured_whole_at_every_tenth_update(clock_time: Time) -> None:
    loop = Loop(clock_time, cost=0.0001)
    loop.run(200)
    assert loop.begun == loop.whole == list(range(0, 200, 10))


def test_what_is_dear_is_rarely_whole(clock_time: Time) -> None:
    loop = Loop(clock_time, cost=0.02)
    loop.run(2000)
    assert loop.whole == loop.begun[::10]
    assert loop.begun[2] - loop.begun[1] == 50


def test_a_number_that_is_set_wins_whatever_it_costs(clock_time: Time) -> None:
    loop = Loop(clock_time, every=7, cost=5.0)
    loop.run(100)
    assert loop.begun == loop.whole == list(range(0, 100, 7))


def test_a_pass_in_slices_is_of_the_step_in_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(updates=20, slices=4, is_whole=False)
    monkeypatch.setattr(PassSchedule, "propose", lambda self, most_slices: plan)
    done: list[tuple[float, int]] = []
    advance = StateSums.advance

    def noted(self: StateSums, share: float) -> None:
        advance(self, share)
        done.append((share, self._num_done))

    monkeypatch.setattr(StateSums, "advance", noted)
    monkeypatch.setattr("trimtab.live.measure.state_sums.CPU_ELEMENTS", 256)
    with watching(tmp_path, observer=False) as run:
        run.train(60)
    assert steps_with(tmp_path, "param_norm") == [0, 20, 40]
    assert steps_with(tmp_path, "grad_norm/mlp") == [0, 20, 40]
    assert steps_with(tmp_path, "update_norm") == [0, 20, 40]
    assert (
        steps_with(tmp_path, "zero_grad_share") == steps_with(tmp_path, "weight_hash/head") == [0]
    )
    assert (
        steps_with(tmp_path, "grad_to_v_rms") == steps_with(tmp_path, "grad_momentum_cosine") == [0]
    )
    assert journal_of(tmp_path).step.tolist() == list(range(60))
    counts = [count for _, count in done[1:5]]
    assert counts[0] == 0
    assert counts == sorted(set(counts))
    norms = journal_of(tmp_path).column("param_norm").values
    assert norms[20] == pytest.approx(norms[0], rel=0.2)


def test_a_pass_whose_gradients_are_gone_is_dropped_and_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(updates=10, slices=3, is_whole=True)
    monkeypatch.setattr(PassSchedule, "propose", lambda self, most_slices: plan)
    with watching(tmp_path, observer=False) as run:
        for step, batch in enumerate(batches(40)):
            loss = loss_of(run.model, batch)
            run.guard.record(loss=loss)
            loss.backward()
            if step == 12:  # in which the last slice is measured
                run.optimizer.zero_grad()
            run.optimizer.step()
            run.optimizer.zero_grad()
        assert not run.guard._monitor.shields.failed
    assert steps_with(tmp_path, "param_norm") == [0, 20, 30]
    assert journal_of(tmp_path).step.tolist() == list(range(40))


def on_rank(rank: int, folder: Path) -> list[int]:
    """Return the updates that a rank has measured; each is slower, and the third one fails."""
    measured: list[int] = []
    begin = telemetry.TelemetrySampler._begin

    def noted(self: telemetry.TelemetrySampler, one: Any) -> None:
        measured.append(self.num_updates)
        if rank == 2 and len(measured) == 2:
            self._shields.telemetry.catch("test", RuntimeError("planted"))
            self._shields.activations.catch("test", RuntimeError("planted"))
        begin(self, one)
        time.sleep(0.02 * rank)

    telemetry.TelemetrySampler._begin = noted  # type: ignore[method-assign]
    pass_schedule.SHARE = 0.4  # a test has no time for more steps
    model = DistributedDataParallel(make_model())
    with watching(folder, model=model, observer=False) as run:
        for batch in batches(150, rank):
            run.step(batch)
            time.sleep(0.001)
    return measured


def test_ranks_measure_the_same_updates_though_one_is_slower_and_one_has_failed(
    tmp_path: Path,
) -> None:
    first, second, failed = run_ranks(on_rank, 3, tmp_path)
    assert first == second
    assert len(first) > len(failed) == 2
