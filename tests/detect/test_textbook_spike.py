import json

import numpy as np
import pytest
from tests.kit.synthetic import add_spike, block_of, falling_loss

from trimtab.core.block import Block, Column
from trimtab.core.findings import Finding, Symptom
from trimtab.detect.textbook import TextbookSpike, TextbookThresholds, trailing_moments


def find(loss: np.ndarray) -> list[Finding]:
    return TextbookSpike(TextbookThresholds()).update_many(block_of({"loss": loss}))


def test_moments_are_those_of_the_window_before() -> None:
    series = falling_loss(300)
    mean, deviation = trailing_moments(series, 100)
    assert len(mean) == 200
    for at in (0, 57, 199):
        window = series[at : at + 100]
        assert mean[at] == pytest.approx(window.mean(), rel=1e-14)
        assert deviation[at] == pytest.approx(window.std(), rel=1e-12)


def test_moments_do_not_depend_on_the_cut() -> None:
    series = falling_loss(400) * 1e3
    mean, deviation = trailing_moments(series, 100)
    for at in range(300):
        one_mean, one_deviation = trailing_moments(series[at : at + 101], 100)
        assert one_mean[0] == mean[at]
        assert one_deviation[0] == deviation[at]


def test_the_threshold_is_three_deviations_over_exactly_100_losses() -> None:
    loss = np.tile([1.0, 3.0], 50)  # mean 2, deviation 1
    assert find(np.append(loss, 5.0)) == []
    (finding,) = find(np.append(loss, np.nextafter(5.0, 6.0)))
    assert finding.symptom is Symptom.LOSS_SPIKE
    assert finding.step == 101
    assert finding.expected == 2.0
    assert finding.limit == 5.0


def test_nothing_is_found_before_100_losses() -> None:
    assert find(np.append(np.tile([1.0, 3.0], 49), [50.0, 2.0])) == []


def test_a_nan_does_not_blind_the_rule() -> None:
    loss = add_spike(falling_loss(700), 650)
    loss[600] = np.nan
    assert any(finding.step == 651 for finding in find(loss))


def test_missing_losses_are_left_out() -> None:
    loss = add_spike(falling_loss(400), 300)
    thinned = np.repeat(loss, 2)
    present = np.tile([True, False], 400)
    block = Block.from_columns({"loss": Column(thinned, present)}, step=np.arange(800))
    values = [f.value for f in TextbookSpike(TextbookThresholds()).update_many(block)]
    assert values == [finding.value for finding in find(loss)]


def test_one_spike_hides_the_next_as_in_the_textbook() -> None:
    once = add_spike(falling_loss(800), 700, height=0.4, decay=1)
    twice = add_spike(once, 660, height=4.0, decay=1)
    assert any(finding.step == 701 for finding in find(once))
    assert not any(finding.step == 701 for finding in find(twice))


def test_losses_near_the_end_of_the_range_do_not_warn() -> None:
    assert find(np.tile([1e308, -1e308, 1.5e308], 100)) == []


def test_state_survives_json() -> None:
    loss = add_spike(falling_loss(400), 300)
    first, second = block_of({"loss": loss})[:250], block_of({"loss": loss})[250:]
    detector = TextbookSpike(TextbookThresholds())
    detector.update_many(first)
    other = TextbookSpike(TextbookThresholds())
    other.load_state_dict(json.loads(json.dumps(detector.state_dict())))
    assert other.update_many(second) == detector.update_many(second)
