"""What a fault goes by decides whether it comes again with other batches."""

import pytest

from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.trainer.checkpoints import RunClock

PATH = [(0, 0), (1, 2), (2, 8), (3, 10)]
"""Steps and data positions, two batches a step; those of steps 2 and 3 are skipped."""


@pytest.mark.parametrize(("by_data", "times"), [(False, [0, 1, 2, 3]), (True, [0, 1, 4, 5])])
def test_time_goes_by_data_or_step(by_data: bool, times: list[int]) -> None:
    clock = RunClock(accumulate=2)
    clock.by_data = by_data
    seen: list[int] = []
    clock.on_step(seen.append)
    for step, position in PATH:
        clock.begin(step, position)
        assert clock.time(step) == seen[-1]
    assert seen == times


def test_a_probe_sees_the_batch_it_runs() -> None:
    clock = RunClock()
    clock.by_data = True
    clock.begin(10, 10)
    with clock.at_batch(3):
        assert clock.time(10) == 3
        assert clock.time(11) == 3  # between two steps the schedule is one ahead
    assert clock.time(10) == 10
    clock.by_data = False
    clock.begin(10, 10)
    with clock.at_batch(3):
        assert clock.time(10) == 10


def test_faults_of_the_data_come_with_their_batches() -> None:
    by_data = {name for name, kind in KINDS.items() if kind.by_data}
    assert {"F01", "F02", "F03", "F04", "F12", "F20", "mix-switch"} <= by_data
    assert not by_data & {"F13w", "F05"}
