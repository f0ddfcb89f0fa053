"""The time of a step, and how often something may be measured."""

import math
import threading

import pytest

from trimtab.live.measure import time_budget
from trimtab.live.measure.time_budget import StepClock, TimeBudget


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


def test_loops_in_threads_do_not_shorten_the_steps_of_each_other(clock_time: Time) -> None:
    slow, fast = StepClock(), StepClock()
    for _ in range(16):
        other = threading.Thread(target=clock_time.take, args=(fast, 1.0))
        other.start()
        other.join()
        clock_time.take(slow, 2.0)
    assert slow.seconds == fast.seconds == pytest.approx(3.0)


def test_what_costs_more_is_measured_less_often(clock_time: Time) -> None:
    clock = StepClock()
    budget = TimeBudget(clock, 0.005)
    assert math.isnan(budget.steps_between(0.01))
    for _ in range(8):
        clock_time.take(clock, 1.0)
    assert budget.steps_between(0.1) == 20
    assert budget.longest_seconds == pytest.approx(0.1)
