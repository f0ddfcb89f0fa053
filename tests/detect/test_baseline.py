import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detect.tools.baseline import (
    CELL,
    FAR_OFF,
    FEWEST,
    LOSS_SHAPE,
    MOST_REJECTED,
    Baseline,
    Scores,
)


def series(seed: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with outliers, a moved level, and a pace that changes."""
    draw = np.random.default_rng(seed)
    values = 3.0 + 0.1 * draw.standard_t(3, length)
    values[draw.integers(0, length, length // 50)] += 5.0
    values[draw.integers(0, length) :] += draw.choice([0.0, 4.0])
    strides = np.where(np.arange(length) < draw.integers(0, length), 1, draw.choice([1, 3, 100]))
    return values, np.cumsum(strides)


def one_by_one(baseline: Baseline, values: np.ndarray, steps: np.ndarray) -> Scores:
    scores = Scores.unknown(len(values))
    for at, (value, step) in enumerate(zip(values.tolist(), steps.tolist(), strict=True)):
        score = baseline.take(value, step)
        if score is not None:
            scores.put(at, score)
    return scores


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 600), max_size=5), st.booleans())
def test_many_at_once_is_one_by_one(seed: int, cuts: list[int], lags: bool) -> None:
    values, steps = series(seed, 600)
    expected = one_by_one(Baseline(LOSS_SHAPE, lags=lags), values, steps)
    baseline = Baseline(LOSS_SHAPE, lags=lags)
    for first, last in pairwise([0, *sorted(cuts), 600]):
        found = baseline.sweep(values[first:last], steps[first:last])
        for name in ("z", "expected", "scale", "stride"):
            known = getattr(expected, name)[first:last]
            np.testing.assert_array_equal(getattr(found, name), known)
        saved = json.loads(json.dumps(baseline.state_dict()))
        baseline = Baseline(LOSS_SHAPE, lags=lags)
        baseline.load_state_dict(saved)


def quiet(length: int = 400) -> Baseline:
    baseline = Baseline(LOSS_SHAPE, lags=True)
    noise = np.random.default_rng(0).normal(3.0, 0.1, length)
    baseline.sweep(noise, np.arange(length))
    return baseline


def test_nothing_is_scored_before_enough_is_known() -> None:
    scores = Baseline(LOSS_SHAPE, lags=True).sweep(np.ones(80), np.arange(80))
    first = int(np.flatnonzero(~np.isnan(scores.z))[0])
    assert first == FEWEST + CELL  # the window, and the gap behind it


def test_what_is_far_off_does_not_enter() -> None:
    baseline = quiet()
    before = baseline.state_dict()
    for step in range(400, 400 + MOST_REJECTED):
        score = baseline.take(30.0, step)
        assert score is not None
        assert score.z > FAR_OFF
    assert baseline.state_dict()["recent"][-90:] == before["recent"][-90:]


def test_a_level_that_stays_becomes_the_normal_one() -> None:
    baseline = quiet()
    scores = [baseline.take(30.0, step) for step in range(400, 400 + 3 * 96)]
    assert scores[-1] is not None
    assert scores[-1].z == pytest.approx(0.0)


def test_another_pace_of_logging_begins_anew() -> None:
    baseline = quiet()
    steps = 400 + 100 * np.arange(40)
    scores = baseline.sweep(np.full(40, 1.5), steps)
    assert np.isnan(scores.z[CELL:FEWEST]).all()
    assert baseline.stride == 100.0
    assert scores.expected[-1] == pytest.approx(1.5)


def test_a_jump_of_the_step_is_no_pace() -> None:
    baseline = quiet()
    steps = np.concatenate([np.arange(400, 403), np.arange(9000, 9040)])
    baseline.sweep(np.full(43, 3.0), steps)
    assert baseline.stride == 1.0
