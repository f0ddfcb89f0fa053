"""What a fault goes by decides whether it comes again after a rollback."""

import pytest

from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.trainer.run_clock import Clock, RunClock

PATH = [(0, 0), (1, 2), (2, 4), (3, 6), (1, 2), (2, 8), (3, 10)]
"""Steps and data positions, two batches a step: from step 3 back to step 1, the batch of step 1
again, those of steps 2 and 3 skipped."""


@pytest.mark.parametrize(
    ("by", "times"),
    [
        (Clock.STEP, [0, 1, 2, 3, 1, 2, 3]),
        (Clock.TICK, [0, 1, 2, 3, 4, 5, 6]),
        (Clock.DATA, [0, 1, 2, 3, 1, 4, 5]),
    ],
)
def test_time_goes_by_data_tick_or_step(by: Clock, times: list[int]) -> None:
    clock = RunClock(accumulate=2)
    clock.by = by
    seen: list[int] = []
    clock.on_step(seen.append)
    for step, position in PATH:
        clock.begin(step, position)
        assert clock.time(step) == seen[-1]
    assert seen == times


def test_a_probe_sees_the_batch_it_runs() -> None:
    clock = RunClock()
    clock.by = Clock.DATA
    clock.begin(10, 10)
    with clock.at_batch(3):
        assert clock.time(10) == 3
        assert clock.time(11) == 3  # between two steps the schedule is one ahead
    assert clock.time(10) == 10
    clock.by = Clock.STEP
    clock.begin(10, 10)
    with clock.at_batch(3):
        assert clock.time(10) == 10


def test_every_kind_says_what_it_goes_by() -> None:
    by_data = {name for name, kind in KINDS.items() if kind.clock is Clock.DATA}
    assert {"F01", "F02", "F03", "F04", "F12", "F20", "mix-switch"} <= by_data
    assert KINDS["F13w"].clock is Clock.TICK
    assert KINDS["F05"].clock is Clock.STEP
