import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.block import Block, Column, Record
from trimtab.core.errors import LogError
from trimtab.explain.comparison import (
    Check,
    Comparison,
    StepWindow,
    apply_check,
    compare_signal,
    values_by_step,
)


def block(losses: list[float], steps: list[int] | None = None) -> Block:
    step = np.arange(len(losses)) if steps is None else np.array(steps)
    return Block.from_columns({"loss": Column.complete(np.array(losses))}, step=step)


def compare(ours: list[float], theirs: list[float], within: float = 0.05) -> Comparison:
    return compare_signal(block(ours), block(theirs), within)


CURVE = [4.0 - step / 500 for step in range(600)]


def test_the_window_is_a_tenth_of_the_records_up_to_fifty() -> None:
    for number, window in ((1, 1), (19, 1), (20, 2), (500, 50), (600, 50)):
        assert compare(CURVE[:number], CURVE[:number]).window == window


@pytest.mark.parametrize(
    ("since", "by", "parted_at"),
    [
        (0, 0.25, 49),  # the first trailing mean
        (400, -1.0, 402),  # of a step of 1.0, three records in fifty are beyond 0.05
        (597, 3.0, 597),  # although the mean difference is small
    ],
)
def test_where_two_runs_separate(since: int, by: float, parted_at: int) -> None:
    apart = [loss + (by if step >= since else 0.0) for step, loss in enumerate(CURVE)]
    found = compare(apart, CURVE)
    assert found.parted_at == parted_at
    assert not found.is_within
    at_end = by * min((600 - since) / 50, 1)
    assert found.difference_at_end == pytest.approx(at_end)
    assert found.worst == pytest.approx(abs(at_end))
    assert found.mean is not None
    assert (found.mean < 0.01) is (since == 597)


def test_independent_noise_is_smoothed() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, (2, 600))
    ours, theirs = (np.array(CURVE) + noise).tolist()
    found = compare(ours, theirs)
    assert found.is_within
    assert found.mean is not None
    assert found.mean < 0.02


def test_a_loss_that_is_finite_in_only_one_run_is_never_within() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        broken = [bad if step == 300 else loss for step, loss in enumerate(CURVE)]
        for found in (compare(broken, CURVE), compare(CURVE, broken)):
            assert not found.is_within
            assert (found.num_broken, found.broken_at) == (1, 300)
            assert (found.num_finite, found.num_common) == (599, 600)
            assert found.mean == 0.0


def test_where_neither_is_finite_nothing_is_compared() -> None:
    broken = [math.nan if step == 300 else loss for step, loss in enumerate(CURVE)]
    found = compare(broken, [math.inf if math.isnan(loss) else loss for loss in broken])
    assert found.is_within
    assert found.num_finite == 599
    with pytest.raises(LogError, match="neither loss is finite at any common step"):
        compare([math.nan] * 3, [math.inf] * 3)


def test_a_run_that_is_nan_throughout() -> None:
    found = compare([math.nan] * 600, CURVE)
    assert not found.is_within
    assert (found.mean, found.worst, found.worst_step) == (None, None, None)
    assert found.num_broken == 600


def test_steps_that_both_runs_have_are_compared_by_the_last_time_that_they_were_done() -> None:
    restarted = block([1.0, 9.0, 9.0, 2.0, 3.0], [0, 1, 2, 1, 2])
    thinned = block(CURVE[::10], list(range(0, 600, 10)))
    pairs = ((restarted, block([1.0, 2.0, 3.0]), 3), (block(CURVE), thinned, 60))
    for run, base, num_common in pairs:
        found = compare_signal(run, base, 0.0)
        assert found.is_within
        assert found.num_common == num_common


def test_no_common_step() -> None:
    with pytest.raises(LogError, match=r"in common: .* at steps 0 to 4, .* 9 to 9"):
        compare_signal(block([1.0, 1.0], [0, 4]), block([1.0], [9]), 0.05)
    with pytest.raises(LogError, match="in common up to step 3"):
        compare_signal(block([1.0], [5]), block([1.0], [5]), 0.05, StepWindow(last=3))


floats = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=60), st.floats(0, 10))
def test_swapping_the_runs_changes_nothing_but_the_sign(
    pairs: list[tuple[float, float]], within: float
) -> None:
    ours, theirs = [list(side) for side in zip(*pairs, strict=True)]
    try:
        one = compare(ours, theirs, within)
    except LogError:
        assert not np.isfinite([*ours, *theirs]).any()
        return
    other = compare(theirs, ours, within)
    assert one.is_within == other.is_within
    assert (one.mean, one.worst, one.parted_at) == (other.mean, other.worst, other.parted_at)
    assert one.mean is None or (one.worst is not None and one.mean <= one.worst * (1 + 1e-9))


def test_what_a_run_had_recorded_beyond_the_step_it_went_back_to_is_not_compared() -> None:
    def record(step: int, attempt: int, **values: float) -> Record:
        return Record(step=step, tick=step + 10 * attempt, attempt=attempt, signals=values)

    first = [record(step, 0, loss=3.0, param_norm=1.0 + step) for step in range(10)]
    again = [record(step, 1, loss=2.0) for step in range(6, 10)]
    run, base = Block.from_records([*first, *again]), Block.from_records(first)
    steps, _ = values_by_step(run, "param_norm")
    assert steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert values_by_step(run, "loss")[1].tolist() == [3.0] * 6 + [2.0] * 4
    assert values_by_step(base, "loss")[0].tolist() == list(range(10))


@pytest.mark.parametrize(("least", "passes"), [(0.5, True), (0.7, False)])
def test_the_mean_of_a_signal_is_checked_over_its_finite_values(least: float, passes: bool) -> None:
    check = Check(signal="loss", first=1, mean_min=least)
    result = apply_check(check, block([9.0, 0.4, math.nan, 0.8]), None)
    assert result.passed is passes
    assert (
        result.found == f"loss on average at least {least} from step 1: 0.6 on average of 2 steps"
    )
    assert not apply_check(check, block([9.0, math.nan]), None).passed
