"""A loss against the few before it."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detect.loss.loss_detectors import NEAR, Neighbours
from trimtab.detect.loss.meaning import SIGNED
from trimtab.detect.tools.baseline import MIN_WINDOW, RECORDS_PER_CELL, SignalBaseline

LENGTH = 640


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, LENGTH), max_size=5))
def test_how_losses_are_cut_and_saved_changes_nothing(seed: int, cuts: list[int]) -> None:
    values = 3.0 + 0.1 * np.random.default_rng(seed).standard_t(3, LENGTH).round(2)  # with ties
    whole = Neighbours(SIGNED.baseline).update(values)
    neighbours = Neighbours(SIGNED.baseline)
    for first, last in pairwise([0, *sorted(cuts), LENGTH]):
        found = neighbours.update(values[first:last])
        for name in ("z", "expected", "scale", "stride"):
            known = getattr(whole, name)[first:last]
            np.testing.assert_array_equal(getattr(found, name), known)
        saved = json.loads(json.dumps(neighbours.state_dict()))
        neighbours = Neighbours(SIGNED.baseline)
        neighbours.load_state_dict(saved)


def test_nothing_is_scored_before_enough_is_known() -> None:
    scores = Neighbours(SIGNED.baseline).update(np.random.default_rng(0).normal(3, 0.1, 80))
    first = int(np.flatnonzero(~np.isnan(scores.z))[0])
    assert first == NEAR + MIN_WINDOW
    assert MIN_WINDOW % RECORDS_PER_CELL == 0


def swinging(length: int) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, 0.03, length)
    return np.asarray(3 + 0.1 * np.sin(2 * np.pi * np.arange(length) / 48) + noise)


def test_a_swing_of_the_data_does_not_hide_a_spike() -> None:
    losses = swinging(1000)
    losses[900] += 0.4
    near = Neighbours(SIGNED.baseline).update(losses)
    past = SignalBaseline(SIGNED.baseline, lags=True).update_many(losses, np.arange(1000))
    assert near.z[900] > 2 * near.z[300:900].max()
    assert past.z[900] < 2 * past.z[300:900].max()


def test_both_the_last_three_and_the_last_eight_must_be_exceeded() -> None:
    neighbours = Neighbours(SIGNED.baseline)
    neighbours.update(np.random.default_rng(2).normal(3, 0.05, 400))
    neighbours.update(np.array([3.0, 3.0, 3.0, 3.0, 3.0, 3.5, 3.5]))
    assert neighbours.update(np.array([3.5])).expected == 3.5


def test_after_a_restart_the_neighbours_are_new_ones() -> None:
    neighbours = Neighbours(SIGNED.baseline)
    neighbours.update(np.random.default_rng(3).normal(3, 0.05, 400))
    neighbours.restart()
    scores = neighbours.update(np.full(NEAR + 1, 9.0))
    assert np.isnan(scores.z[:NEAR]).all()
    assert scores.z[NEAR] == pytest.approx(0.0)
