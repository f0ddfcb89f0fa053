"""Values that leave their range: the test itself, weight norms and token statistics."""

import numpy as np
import pytest
from tests.detect.feeding import alarms, at, block, findings

from trimtab.core.findings import Severity, Symptom
from trimtab.detect.run.token_mix import TokenMix, TokenMixShift
from trimtab.detect.state.norm_trend import NormTrend
from trimtab.detect.tools.range_test import RangeSpec, RangeTest

SPEC = RangeSpec(before=6, newest=2, widths=0.5)


def out_of_range(cells: list[float], spec: RangeSpec = SPEC) -> list[int]:
    single, many = RangeTest(spec), RangeTest(spec)
    one_by_one = [at for at, cell in enumerate(cells) if single.update(cell) is not None]
    assert [at for at, _ in many.update_many(np.array(cells))] == one_by_one
    assert single.state_dict() == many.state_dict()
    return one_by_one


def test_all_newest_must_be_far_enough_outside() -> None:
    usual = [1.0, 2.0, 1.5, 1.2, 1.8, 1.4]
    assert out_of_range([*usual, 3.0, 3.0]) == [7]
    assert out_of_range([*usual, 0.0, 0.0]) == [7]
    assert out_of_range([*usual, 3.0, 1.5]) == []
    assert out_of_range([*usual, 2.4, 2.4]) == []
    assert out_of_range([*usual, 0.0, 0.0], RangeSpec(before=6, newest=2, downwards=False)) == []


def test_the_new_range_becomes_normal() -> None:
    usual = [1.0, 2.0, 1.5, 1.2, 1.8, 1.4]
    assert out_of_range([*usual, *([9.0, 9.1] * 20)]) == [7]


def test_a_constant_has_no_range_to_leave() -> None:
    assert out_of_range([1.0] * 6 + [5.0] * 20) == []


def test_chance_findings_are_as_rare_as_computed() -> None:
    cells = np.random.default_rng(0).normal(size=100_000)
    found = list(RangeTest(RangeSpec(before=24, newest=6)).update_many(cells))
    assert len(found) <= 2


LENGTH, AT = 400, 240


def norms(growth: float, rate: np.ndarray) -> np.ndarray:
    draw = np.random.default_rng(0)
    slope = np.where(np.arange(LENGTH) < AT, 1.0, growth)
    return np.asarray(np.exp(np.cumsum(rate * (slope + 0.2 * draw.normal(size=LENGTH)))))


@pytest.mark.parametrize("growth", [4.0, -3.0])
def test_a_norm_that_grows_or_shrinks_faster_is_reported_once(growth: float) -> None:
    rate = np.full(LENGTH, 1e-3)
    run = block(LENGTH, **{"param_norm/attention": norms(growth, rate), "lr": rate})
    (alarm,) = alarms(NormTrend, run)
    assert alarm.symptom is Symptom.NORM_DRIFT
    assert AT < alarm.step <= AT + 32


def test_one_norm_that_drifts_a_little_is_a_warning_and_two_are_an_alarm() -> None:
    rate = np.full(LENGTH, 1e-3)
    little = norms(1.5, rate)
    usual = norms(1.0, rate)
    alone = block(LENGTH, **{"param_norm/attention": little, "param_norm/mlp": usual, "lr": rate})
    (warning,) = findings(NormTrend, alone)
    assert warning.severity is Severity.WARN
    both = block(LENGTH, **{"param_norm/attention": little, "param_norm/mlp": little, "lr": rate})
    assert [item.signal for item in alarms(NormTrend, both)] == ["param_norm/mlp"]


def test_the_whole_model_and_its_embedding_are_one_witness() -> None:
    rate = np.full(LENGTH, 1e-3)
    little = norms(1.8, rate)
    parts = {"param_norm": little, "param_norm/embedding": little, "lr": rate}
    assert len(findings(NormTrend, block(LENGTH, **parts))) == 2
    assert alarms(NormTrend, block(LENGTH, **parts)) == []
    with_group = {**parts, "param_norm/mlp": norms(1.5, rate)}
    assert alarms(NormTrend, block(LENGTH, **with_group))


def test_growth_that_follows_the_rate_is_no_drift() -> None:
    rate = 1e-3 * np.minimum(1.0, np.arange(1, LENGTH + 1) / 300)
    run = block(LENGTH, **{"param_norm/attention": norms(1.0, rate), "lr": rate})
    assert alarms(NormTrend, run) == []


def test_a_group_that_grows_with_its_updates_is_no_drift() -> None:
    rate = np.full(LENGTH, 1e-3)
    weights = norms(4.0, rate)
    usual = 1e-2 * np.exp(np.random.default_rng(1).normal(0, 0.1, LENGTH))
    learning = np.where(np.arange(LENGTH) < AT, usual, 4 * usual)
    signals = {"param_norm/attention": weights, "lr": rate}
    assert alarms(NormTrend, block(LENGTH, **signals, **{"update_norm/attention": learning})) == []
    (alarm,) = alarms(NormTrend, block(LENGTH, **signals, **{"update_norm/attention": usual}))
    assert AT < alarm.step <= AT + 32


def test_changes_in_different_units_are_not_compared() -> None:
    rate = np.full(LENGTH, 1e-3)
    recorded_late = np.where(np.arange(LENGTH) < AT, 0.0, 1e-5)
    signals = {"param_norm/mlp": norms(1.0, rate), "update_norm/mlp": recorded_late, "lr": rate}
    assert findings(NormTrend, block(LENGTH, **signals)) == []


def test_a_different_mix_of_tokens_is_reported_unless_planned() -> None:
    share = np.random.default_rng(1).normal(0.4, 0.02, LENGTH)
    share[AT:] -= 0.1
    (alarm,) = alarms(TokenMix, block(LENGTH, unique_token_share=share))
    assert alarm.symptom is Symptom.TEXT_CHANGED
    planned = block(LENGTH, unique_token_share=share, events=[at("planned change", AT)])
    assert alarms(TokenMix, planned) == []


def token_statistics(share: float, rarity: float, length: int = 600) -> dict[str, np.ndarray]:
    """Of batches whose mix changes by these shares of a deviation."""
    draw = np.random.default_rng(1)
    later = np.arange(length) >= length // 2
    return {
        "unique_token_share": 0.5 + 0.03 * (draw.normal(size=length) + share * later),
        "token_rarity": 5.3 + 0.08 * (draw.normal(size=length) + rarity * later),
    }


def test_a_mix_that_changes_by_less_than_batches_differ_is_found_and_dated_back() -> None:
    signals = token_statistics(share=-0.7, rarity=-0.9)
    assert alarms(TokenMix, block(600, **signals)) == []
    (alarm,) = alarms(TokenMixShift, block(600, **signals))
    assert alarm.symptom is Symptom.TEXT_CHANGED
    assert 300 < alarm.step < 550
    assert alarm.onset_tick is not None
    assert abs(alarm.onset_tick - 300) < 64


def test_a_mix_has_changed_only_if_both_statistics_say_so_and_nobody_planned_it() -> None:
    for share, rarity in ((0.0, 0.0), (-0.7, 0.0), (0.0, -0.9)):
        assert findings(TokenMixShift, block(600, **token_statistics(share, rarity))) == []
    planned = block(600, **token_statistics(-0.7, -0.9), events=[at("planned change", 300)])
    assert findings(TokenMixShift, planned) == []


def test_a_change_of_mix_is_found_after_a_long_quiet_run_as_record_by_record() -> None:
    signals = token_statistics(share=-0.7, rarity=-0.9, length=3000)
    (alarm,) = alarms(TokenMixShift, block(3000, **signals))
    assert 1500 < alarm.step < 1800


def test_constant_token_statistics_are_no_shift() -> None:
    assert findings(TokenMixShift, block(600, unique_token_share=0.5, token_rarity=5.0)) == []
    step = np.where(np.arange(600) < 300, 5.0, 6.0)
    assert findings(TokenMixShift, block(600, unique_token_share=0.5, token_rarity=step)) == []
