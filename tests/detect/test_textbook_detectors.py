"""The textbook's detectors: the loss spike, non-finite values, the slow rise, the loss scale."""

import numpy as np
import pytest
from tests.kit.synthetic import add_spike, block_of, falling_loss

from trimtab.core.block import Block, Column
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Symptom
from trimtab.detect.state.hard_limits import NonFinite
from trimtab.detect.textbook import (
    TextbookRise,
    TextbookScale,
    TextbookSpike,
    TextbookThresholds,
    trailing_moments,
)

CONFIG = TextbookThresholds()


def spikes(loss: np.ndarray) -> list[Finding]:
    return TextbookSpike(CONFIG).update_many(block_of({"loss": loss}))


def steps(detector: Detector, **signals: np.ndarray) -> list[int]:
    """The steps at which a detector finds something; the first record is step 1."""
    return [finding.step for finding in detector.update_many(block_of(signals))]


def test_moments_are_those_of_the_window_before() -> None:
    series = falling_loss(300)
    mean, deviation = trailing_moments(series, 100)
    assert len(mean) == 200
    for at in (0, 57, 199):
        window = series[at : at + 100]
        assert mean[at] == pytest.approx(window.mean(), rel=1e-14)
        assert deviation[at] == pytest.approx(window.std(), rel=1e-12)


def test_the_threshold_is_three_deviations_over_exactly_100_losses() -> None:
    loss = np.tile([1.0, 3.0], 50)  # mean 2, deviation 1
    assert spikes(np.append(loss, 5.0)) == []
    assert spikes(np.append(loss[2:], [50.0, 2.0])) == []  # 98 losses, too few
    (finding,) = spikes(np.append(loss, np.nextafter(5.0, 6.0)))
    assert (finding.symptom, finding.step) == (Symptom.LOSS_SPIKE, 101)
    assert (finding.expected, finding.limit) == (2.0, 5.0)


def test_losses_that_are_nan_missing_or_huge_do_not_blind_the_rule() -> None:
    loss = add_spike(falling_loss(700), 650)
    missing = np.tile([True, False], 700)
    block = Block.from_columns({"loss": Column(np.repeat(loss, 2), missing)}, step=np.arange(1400))
    values = [finding.value for finding in TextbookSpike(CONFIG).update_many(block)]
    assert values == [finding.value for finding in spikes(loss)]
    loss[600] = np.nan
    assert 651 in steps(TextbookSpike(CONFIG), loss=loss)
    assert spikes(np.tile([1e308, -1e308, 1.5e308], 100)) == []


def test_one_spike_hides_the_next_as_in_the_textbook() -> None:
    once = add_spike(falling_loss(800), 700, height=0.4, decay=1)
    twice = add_spike(once, 660, height=4.0, decay=1)
    assert 701 in steps(TextbookSpike(CONFIG), loss=once)
    assert 701 not in steps(TextbookSpike(CONFIG), loss=twice)


@pytest.mark.parametrize(
    ("signals", "found"),
    [
        ({"loss": [1.0, np.nan, np.nan, 2.0, np.inf, 1.0, -np.inf]}, ["loss", "loss", "loss"]),
        ({"loss": [1.0, 1.0], "param_norm": [1.0, np.inf]}, ["param_norm"]),
        ({"loss": [1.0, np.nan], "grad_norm": [np.inf, 1.0]}, ["grad_norm", "loss"]),
        ({"perplexity": [np.inf]}, []),  # of a signal that is not known
    ],
)
def test_each_stretch_of_non_finite_values_is_one_finding(
    signals: dict[str, list[float]], found: list[str]
) -> None:
    block = block_of({name: np.array(values) for name, values in signals.items()})
    assert [finding.signal for finding in NonFinite().update_many(block)] == found


def test_a_missing_value_does_not_end_a_stretch() -> None:
    column = Column(np.full(3, np.nan), np.array([True, False, True]))
    block = Block.from_columns({"loss": column}, step=np.arange(3))
    assert [finding.step for finding in NonFinite().update_many(block)] == [0]


def test_200_rises_in_a_row_are_a_divergence_that_is_reported_once() -> None:
    assert steps(TextbookRise(CONFIG), loss=np.arange(200.0)) == []
    loss = np.concatenate([np.arange(500.0), np.arange(300.0)])
    assert steps(TextbookRise(CONFIG), loss=loss) == [201, 701]
    for breaker in (99.0, np.nan, np.inf):
        loss = np.arange(250.0)
        loss[100] = breaker
        assert steps(TextbookRise(CONFIG), loss=loss) == []


def test_a_scale_under_one_is_a_collapse_reported_once_per_fall() -> None:
    scale = np.array([4.0, 1.0, 0.5, 0.25, 2.0, 0.5])
    assert steps(TextbookScale(CONFIG), loss_scale=scale) == [3, 6]
    assert steps(TextbookScale(CONFIG), loss=np.ones(3)) == []
