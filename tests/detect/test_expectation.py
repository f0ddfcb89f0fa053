import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trimtab.detect.loss.meaning import SIGNED
from trimtab.detect.tools.baseline import (
    LOG_NORM_BASELINE,
    BaselineSpec,
    expect,
    expect_many,
)

numbers = st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 1e100, -1e100, 3.0]))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(24, 50).flatmap(
        lambda n: arrays(np.float64, st.tuples(st.integers(1, 4), st.just(n)), elements=numbers)
    ),
    st.sampled_from([0, 8]),
    st.sampled_from([SIGNED.baseline, LOG_NORM_BASELINE]),
)
def test_one_window_and_many_agree_to_the_last_bit(
    windows: np.ndarray, gap: int, spec: BaselineSpec
) -> None:
    many = expect_many(windows, gap, spec)
    for row, window in enumerate(windows.tolist()):
        one = expect(window, gap, spec)
        found = tuple(float(column[row]) for column in many)
        assert found == (one.start, one.slope, one.floor, one.scale)


def test_noise_is_measured_and_outliers_do_not_count() -> None:
    noise = np.random.default_rng(0).normal(3.0, 0.1, 96)
    noise[::10] += 50.0
    known = expect(noise.tolist(), 8, SIGNED.baseline)
    assert known.at(1) == pytest.approx(3.0, abs=0.1)
    assert known.scale == pytest.approx(0.1, rel=0.5)


def test_half_of_a_falling_trend_continues_but_never_under_the_newest_records() -> None:
    falling = (5.0 - 0.01 * np.arange(96)).tolist()
    known = expect(falling, 8, SIGNED.baseline)
    assert known.slope == pytest.approx(-0.005)
    assert known.at(8) >= np.median(falling[-16:])
    rising = expect(falling[::-1], 8, SIGNED.baseline)
    assert rising.slope == 0.0


def test_a_constant_signal_has_a_scale() -> None:
    assert expect([2.0] * 96, 8, SIGNED.baseline).scale == pytest.approx(0.004)
    assert expect([0.0] * 96, 8, SIGNED.baseline).scale > 0
