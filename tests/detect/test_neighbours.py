"""A loss against the few before it."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detect.loss.loss_detectors import NEAR, WINDOW, Neighbours
from trimtab.detect.loss.meaning import SIGNED
from trimtab.detect.tools.baseline import (
    MIN_WINDOW,
    RECORDS_PER_CELL,
    Scores,
    SignalBaseline,
)

LENGTH = 5 * WINDOW


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, LENGTH), max_size=5))
def test_many_at_once_is_one_by_one(seed: int, cuts: list[int]) -> None:
    draw = np.random.default_rng(seed)
    values = 3.0 + 0.1 * draw.standard_t(3, LENGTH).round(2)  # with ties
    single, many = Neighbours(SIGNED.baseline), Neighbours(SIGNED.baseline)
    expected = Scores.unknown(LENGTH)
    for at, value in enumerate(values.tolist()):
        score = single.update(value)
        if score is not None:
            expected.set(at, score)
    for first, last in pairwise([0, *sorted(cuts), LENGTH]):
        found = many.update_many(values[first:last])
        for name in ("z", "expected", "scale", "stride"):
            known = getattr(expected, name)[first:last]
            np.testing.assert_array_equal(getattr(found, name), known)
        saved = json.loads(json.dumps(many.state_dict()))
        many = Neighbours(SIGNED.baseline)
        many.load_state_dict(saved)
    assert many.state_dict() == single.state_dict()


def test_nothing_is_scored_before_enough_is_known() -> None:
    scores = Neighbours(SIGNED.baseline).update_many(np.random.default_rng(0).normal(3, 0.1, 80))
    first = int(np.flatnonzero(~np.isnan(scores.z))[0])
    assert first == NEAR + MIN_WINDOW
    assert MIN_WINDOW % RECORDS_PER_CELL == 0


def swinging(length: int) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, 0.03, length)
    return np.asarray(3 + 0.1 * np.sin(2 * np.pi * np.arange(length) / 48) + noise)


def test_a_swing_of_the_data_does_not_hide_a_spike() -> None:
    losses = swinging(1000)
    losses[900] += 0.4
    near = Neighbours(SIGNED.baseline).update_many(losses)
    past = SignalBaseline(SIGNED.baseline, lags=True).update_many(losses, np.arange(1000))
    assert near.z[900] > 2 * near.z[300:900].max()
    assert past.z[900] < 2 * past.z[300:900].max()


def test_both_the_last_three_and_the_last_eight_must_be_exceeded() -> None:
    neighbours = Neighbours(SIGNED.baseline)
    neighbours.update_many(np.random.default_rng(2).normal(3, 0.05, 400))
    for value in (3.0, 3.0, 3.0, 3.0, 3.0, 3.5, 3.5):
        neighbours.update(value)
    score = neighbours.update(3.5)
    assert score is not None
    assert score.expected == 3.5


def test_after_a_restart_the_neighbours_are_new_ones() -> None:
    neighbours = Neighbours(SIGNED.baseline)
    neighbours.update_many(np.random.default_rng(3).normal(3, 0.05, 400))
    neighbours.restart()
    assert [neighbours.update(9.0) for _ in range(NEAR)] == [None] * NEAR
    score = neighbours.update(9.0)
    assert score is not None
    assert score.z == pytest.approx(0.0)
