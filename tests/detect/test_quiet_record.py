import json
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detect.tools.running_sums import RunningSums
from trimtab.detect.tools.score_history import BLOCK, BLOCKS, FACTOR, Bounds, QuietRecord


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 3000), max_size=4))
def test_many_at_once_is_one_by_one(seed: int, cuts: list[int]) -> None:
    scores = np.random.default_rng(seed).normal(0, 2, (2, 3000))
    single, many = QuietRecord(2), QuietRecord(2)
    for first, last in pairwise([0, *sorted(cuts), 3000]):
        for column in scores[:, first:last].T.tolist():
            single.see(column)
        many.sweep(scores[:, first:last])
        assert many.state_dict() == single.state_dict()
        saved = json.loads(json.dumps(many.state_dict()))
        many = QuietRecord(2)
        many.load_state_dict(saved)


BOUNDS = Bounds(prior=6.0, low=5.0, cap=9.0, rank=3)


def after(height: float, times: int = 3) -> QuietRecord:
    record = QuietRecord(1)
    scores = np.ones((1, BLOCK * BLOCKS))
    scores[0, : times * BLOCK : BLOCK] = height
    record.sweep(scores)
    return record


def test_a_run_with_heavy_tails_is_asked_for_more_but_not_without_end() -> None:
    assert QuietRecord(1).threshold(0, BOUNDS) == 6.0
    assert after(1.0).threshold(0, BOUNDS) == 5.0
    assert after(4.0).threshold(0, BOUNDS) == FACTOR * 4.0
    assert after(40.0).threshold(0, BOUNDS) == BOUNDS.cap


def test_one_or_two_missed_spikes_do_not_raise_the_bar() -> None:
    assert after(40.0, times=2).threshold(0, BOUNDS) == 5.0


def test_a_wild_run_is_asked_for_much_and_a_calm_one_for_little() -> None:
    squared = Bounds(prior=30.0, low=6.0, cap=30.0, rank=2, factor=0.33, power=2)
    assert after(4.0).threshold(0, squared) == 6.0
    assert after(5.0).threshold(0, squared) == 0.33 * 25
    assert after(9.0).threshold(0, squared) == 0.33 * 81
    assert QuietRecord(1).threshold(0, squared) == 30.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3000), st.integers(1, 1100))
def test_no_threshold_falls_under_what_was_foretold(seed: int, known: int, more: int) -> None:
    scores = np.random.default_rng(seed).normal(0, 2, (1, known + more))
    record = QuietRecord(1)
    record.sweep(scores[:, :known])
    (least,) = record.least_thresholds([BOUNDS], more)
    for at in range(known, known + more):
        assert record.threshold(0, BOUNDS) >= least
        record.see([float(scores[0, at])])
    assert record.threshold(0, BOUNDS) >= least


def test_what_led_to_an_alarm_is_left_out() -> None:
    record = after(1.0)
    for _ in range(BLOCK - 1):
        record.see([5.0])
    record.discard()
    record.sweep(np.ones((1, 3 * BLOCK)))
    assert record.threshold(0, BOUNDS) == 5.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 5), max_size=80), st.integers(0, 80))
def test_running_sums_are_sums(values: list[float], cut: int) -> None:
    one, many = RunningSums(5), RunningSums(5)
    singly = [one.add(value) for value in values]
    parts = [many.sweep(np.array(part)) for part in (values[:cut], values[cut:])]
    for place in range(5):
        length = 2 ** (place + 1)
        column = [sums[place] for sums in singly]
        assert np.concatenate([part[place] for part in parts]).tolist() == column
        plain = [sum(values[max(at + 1 - length, 0) : at + 1]) for at in range(len(values))]
        np.testing.assert_allclose(column, plain, atol=1e-9)
    assert one.state_dict() == many.state_dict()
