import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detect.loss.meaning import SIGNED
from trimtab.detect.tools.baseline import (
    FAR_OFF,
    MAX_REJECTED_IN_A_ROW,
    MIN_WINDOW,
    RECORDS_PER_CELL,
    Expectation,
    Scores,
    SignalBaseline,
    expect,
)


def series(seed: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with outliers, a moved level, and a pace that changes."""
    draw = np.random.default_rng(seed)
    values = 3.0 + 0.1 * draw.standard_t(3, length)
    values[draw.integers(0, length, length // 50)] += 5.0
    values[draw.integers(0, length) :] += draw.choice([0.0, 4.0])
    strides = np.where(np.arange(length) < draw.integers(0, length), 1, draw.choice([1, 3, 100]))
    return values, np.cumsum(strides)


def one_by_one(baseline: SignalBaseline, values: np.ndarray, steps: np.ndarray) -> Scores:
    scores = Scores.unknown(len(values))
    for at, (value, step) in enumerate(zip(values.tolist(), steps.tolist(), strict=True)):
        score = baseline.update(value, step)
        if score is not None:
            scores.set(at, score)
    return scores


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 600), max_size=5), st.booleans())
def test_many_at_once_is_one_by_one(seed: int, cuts: list[int], lags: bool) -> None:
    values, steps = series(seed, 600)
    expected = one_by_one(SignalBaseline(SIGNED.baseline, lags=lags), values, steps)
    baseline = SignalBaseline(SIGNED.baseline, lags=lags)
    for first, last in pairwise([0, *sorted(cuts), 600]):
        found = baseline.update_many(values[first:last], steps[first:last])
        for name in ("z", "expected", "scale", "stride", "recurs"):
            known = getattr(expected, name)[first:last]
            np.testing.assert_array_equal(getattr(found, name), known)
        saved = json.loads(json.dumps(baseline.state_dict()))
        baseline = SignalBaseline(SIGNED.baseline, lags=lags)
        baseline.load_state_dict(saved)


def quiet(length: int = 400) -> SignalBaseline:
    baseline = SignalBaseline(SIGNED.baseline, lags=True)
    noise = np.random.default_rng(0).normal(3.0, 0.1, length)
    baseline.update_many(noise, np.arange(length))
    return baseline


def test_nothing_is_scored_before_enough_is_known() -> None:
    scores = SignalBaseline(SIGNED.baseline, lags=True).update_many(np.ones(80), np.arange(80))
    first = int(np.flatnonzero(~np.isnan(scores.z))[0])
    assert first == MIN_WINDOW + RECORDS_PER_CELL  # the window, and the gap after it


def test_a_value_that_is_far_off_does_not_enter() -> None:
    baseline = quiet()
    before = baseline.state_dict()
    for step in range(400, 400 + MAX_REJECTED_IN_A_ROW):
        score = baseline.update(30.0, step)
        assert score is not None
        assert score.z > FAR_OFF
    assert baseline.state_dict()["_recent"][-90:] == before["_recent"][-90:]


def test_a_level_that_stays_becomes_the_normal_one() -> None:
    baseline = quiet()
    scores = [baseline.update(30.0, step) for step in range(400, 400 + 3 * 96)]
    assert scores[-1] is not None
    assert scores[-1].z == pytest.approx(0.0)


def test_a_new_logging_interval_starts_a_new_window() -> None:
    baseline = quiet()
    steps = 400 + 100 * np.arange(40)
    scores = baseline.update_many(np.full(40, 1.5), steps)
    assert np.isnan(scores.z[RECORDS_PER_CELL:MIN_WINDOW]).all()
    assert baseline.stride == 100.0
    assert scores.expected[-1] == pytest.approx(1.5)


def test_a_jump_of_the_step_is_no_logging_interval() -> None:
    baseline = quiet()
    steps = np.concatenate([np.arange(400, 403), np.arange(9000, 9040)])
    baseline.update_many(np.full(43, 3.0), steps)
    assert baseline.stride == 1.0


def expectation(window: np.ndarray) -> Expectation:
    """What a loss is expected to be after a window that ended 8 records ago."""
    return Expectation(*(float(column[0]) for column in expect(window[None], 8, SIGNED.baseline)))


def test_noise_is_measured_and_outliers_do_not_count() -> None:
    noise = np.random.default_rng(0).normal(3.0, 0.1, 96)
    noise[::10] += 50.0
    known = expectation(noise)
    assert known.at(1) == pytest.approx(3.0, abs=0.1)
    assert known.scale == pytest.approx(0.1, rel=0.5)


def test_half_of_a_falling_trend_continues_but_never_under_the_newest_records() -> None:
    falling = 5.0 - 0.01 * np.arange(96)
    known = expectation(falling)
    assert known.slope == pytest.approx(-0.005)
    assert known.at(8) >= np.median(falling[-16:])
    assert expectation(falling[::-1]).slope == 0.0


def test_a_constant_signal_has_a_scale() -> None:
    assert expectation(np.full(96, 2.0)).scale == pytest.approx(0.004)
    assert expectation(np.zeros(96)).scale > 0
