from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detect.tools.score_history import (
    ENTRIES_REMEMBERED,
    FACTOR,
    RECORDS_PER_ENTRY,
    Bounds,
    ScoreHistory,
)
from trimtab.detect.tools.series import RunningSums


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 3000), max_size=4))
def test_how_scores_are_cut_changes_nothing(seed: int, cuts: list[int]) -> None:
    scores = np.random.default_rng(seed).normal(0, 2, (2, 3000))
    whole, pieces = ScoreHistory(2), ScoreHistory(2)
    whole.update(scores)
    for first, last in pairwise([0, *sorted(cuts), 3000]):
        pieces.update(scores[:, first:last])
    assert pieces.state_dict() == whole.state_dict()


BOUNDS = Bounds(prior=6.0, low=5.0, cap=9.0, rank=3)


def after(height: float, times: int = 3) -> ScoreHistory:
    history = ScoreHistory(1)
    scores = np.ones((1, RECORDS_PER_ENTRY * ENTRIES_REMEMBERED))
    scores[0, : times * RECORDS_PER_ENTRY : RECORDS_PER_ENTRY] = height
    history.update(scores)
    return history


def test_heavy_tails_raise_the_threshold_up_to_the_cap() -> None:
    assert ScoreHistory(1).threshold(0, BOUNDS) == 6.0
    assert after(1.0).threshold(0, BOUNDS) == 5.0
    assert after(4.0).threshold(0, BOUNDS) == FACTOR * 4.0
    assert after(40.0).threshold(0, BOUNDS) == BOUNDS.cap


def test_one_or_two_missed_spikes_do_not_raise_the_threshold() -> None:
    assert after(40.0, times=2).threshold(0, BOUNDS) == 5.0


def test_a_wild_run_has_a_high_threshold_and_a_calm_one_a_low_one() -> None:
    squared = Bounds(prior=30.0, low=6.0, cap=30.0, rank=2, factor=0.33, power=2)
    assert after(4.0).threshold(0, squared) == 6.0
    assert after(5.0).threshold(0, squared) == 0.33 * 25
    assert after(9.0).threshold(0, squared) == 0.33 * 81
    assert ScoreHistory(1).threshold(0, squared) == 30.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3000), st.integers(1, 1100))
def test_no_threshold_falls_under_the_predicted_lowest(seed: int, known: int, more: int) -> None:
    scores = np.random.default_rng(seed).normal(0, 2, (1, known + more))
    history = ScoreHistory(1)
    history.update(scores[:, :known])
    (lowest,) = history.lowest_thresholds([BOUNDS], more)
    for at in range(known, known + more):
        assert history.threshold(0, BOUNDS) >= lowest
        history.update(scores[:, at : at + 1])
    assert history.threshold(0, BOUNDS) >= lowest


def test_the_return_level_is_exceeded_about_once_in_100_000_records() -> None:
    draw = np.random.default_rng(0)
    levels = []
    for _ in range(50):
        history = ScoreHistory(1)
        history.update(draw.exponential(1.0, (1, 2048)))
        levels.append(history.return_level(0))
    assert np.median(levels) == pytest.approx(np.log(100_000), rel=0.1)


def test_a_run_that_is_not_known_yet_has_no_return_level() -> None:
    history = ScoreHistory(1)
    history.update(np.full((1, 7 * 32), 3.0))
    assert history.return_level(0) == 0.0


def test_records_that_led_to_an_alarm_are_left_out() -> None:
    history = after(1.0)
    history.update(np.full((1, RECORDS_PER_ENTRY - 1), 5.0))
    history.drop_current()
    history.update(np.ones((1, 3 * RECORDS_PER_ENTRY)))
    assert history.threshold(0, BOUNDS) == 5.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 5), max_size=80), st.integers(0, 80))
def test_running_sums_are_sums(values: list[float], cut: int) -> None:
    whole, cut_in_two = RunningSums(5), RunningSums(5)
    sums = whole.add_many(np.array(values))
    parts = [cut_in_two.add_many(np.array(part)) for part in (values[:cut], values[cut:])]
    for place, found in enumerate(sums):
        assert np.concatenate([part[place] for part in parts]).tolist() == found.tolist()
        length = 2 ** (place + 1)
        plain = [sum(values[max(at + 1 - length, 0) : at + 1]) for at in range(len(values))]
        np.testing.assert_allclose(found, plain, atol=1e-9)
    assert whole.state_dict() == cut_in_two.state_dict()
