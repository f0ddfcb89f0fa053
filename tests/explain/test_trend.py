"""What the loss would have been."""

import math

import numpy as np
import pytest

from trimtab.core.incidents import Moment
from trimtab.explain.incidents.course import trend_of


def moments(losses: np.ndarray, *, first: int = 100) -> list[Moment]:
    return [Moment(step=first + at, tick=at, loss=float(loss)) for at, loss in enumerate(losses)]


def falling(rows: int = 200, *, noise: float = 0.0) -> np.ndarray:
    values = np.random.default_rng(0).normal(0, noise, rows) if noise else np.zeros(rows)
    return 4.0 - np.log(np.arange(100, 100 + rows) + 1) + values


def test_a_falling_loss_is_expected_to_fall_half_as_fast() -> None:
    trend = trend_of(moments(falling()), is_thinned=False)
    assert trend is not None
    assert trend.at(299) == pytest.approx(4.0 - math.log(300), abs=1e-6)
    assert trend.at(599) == pytest.approx(4.0 - math.log(300) - 0.5 * math.log(2), abs=1e-6)


def test_a_rise_is_no_trend_and_a_thinned_log_has_none() -> None:
    rising = trend_of(moments(8.0 - falling()), is_thinned=False)
    thinned = trend_of(moments(falling()), is_thinned=True)
    assert rising is not None
    assert thinned is not None
    assert rising.fall == thinned.fall == 0.0
    assert thinned.at(10_000) == thinned.level


def test_the_scale_is_that_of_the_noise_and_never_zero() -> None:
    trend = trend_of(moments(falling(noise=0.1)), is_thinned=False)
    assert trend is not None
    assert trend.scale == pytest.approx(0.1, rel=0.3)
    flat = trend_of(moments(np.zeros(50)), is_thinned=False)
    assert flat is not None
    assert flat.scale > 0


def test_few_losses_or_steps_that_went_back_give_no_slope() -> None:
    assert trend_of(moments(np.ones(7)), is_thinned=False) is None
    assert trend_of(moments(np.full(50, np.nan)), is_thinned=False) is None
    twice = moments(falling(100)) + moments(falling(100))
    trend = trend_of(twice, is_thinned=False)
    assert trend is not None
    assert trend.fall == 0.0
