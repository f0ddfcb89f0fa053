"""Spikes, norms and levels, found in runs of known shape."""

import numpy as np
import pytest
from tests.kit.synthetic import block_of, falling_loss

from trimtab.core.block import Block, Column
from trimtab.core.config import Config, DetectConfig
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import Quality
from trimtab.detect.detector_set import DetectorSet
from trimtab.detect.trimtab_detectors import trimtab_detectors

LENGTH, AT = 2400, 2000


def detectors(threshold_scale: float = 1.0) -> DetectorSet:
    config = Config(detect=DetectConfig(threshold_scale=threshold_scale))
    return DetectorSet(trimtab_detectors(config))


def run(**changes: np.ndarray) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    signals = {
        "loss": falling_loss(LENGTH, seed=3, noise=0.04),
        "grad_norm": np.exp(draw.normal(-1.0, 0.08, LENGTH)),
        "update_norm": np.exp(draw.normal(-3.0, 0.05, LENGTH)),
    }
    for name, change in changes.items():
        part = slice(AT, AT + len(change))
        signals[name][part] = (
            signals[name][part] + change if name == "loss" else (signals[name][part] * change)
        )
    return signals


def found(signals: dict[str, np.ndarray], least: Severity = Severity.ALARM) -> list[Finding]:
    findings = detectors().update(block_of(signals, first_step=0))
    return [finding for finding in findings if finding.severity >= least]


def test_a_healthy_run_raises_nothing() -> None:
    assert found(run(), Severity.WARN) == []


def test_a_spike_is_found_at_its_second_step_and_dated_back() -> None:
    first, *_ = found(run(loss=np.full(10, 0.5)))
    assert first.symptom is Symptom.LOSS_SPIKE
    assert first.step == AT + 1
    assert first.onset_tick == AT
    assert first.expected == pytest.approx(2.0, abs=0.05)
    assert first.limit == pytest.approx(2.2, abs=0.1)


def test_one_high_loss_in_an_every_step_log_is_only_a_batch() -> None:
    assert found(run(loss=np.array([0.8]))) == []


def test_one_extreme_batch_without_consequences_is_no_alarm() -> None:
    assert found(run(loss=np.array([50.0]))) == []
    assert found(run(loss=np.array([50.0]), grad_norm=np.array([900.0]))) == []
    two = found(run(loss=np.array([50.0, 1.0])))
    assert [finding.step for finding in two] == [AT + 1]


@pytest.mark.parametrize(("factor", "alarms"), [(1.0, []), (1.2, [1000])])
def test_a_run_that_goes_back_is_judged_by_the_losses_before_that_step(
    factor: float, alarms: list[int]
) -> None:
    steps = np.concatenate([np.arange(1200), np.arange(1000, LENGTH)])
    draw = np.random.default_rng(3)
    loss = (2.2 + 6.8 * np.exp(-steps / 500)) * draw.normal(1.0, 0.015, len(steps))
    loss[1200:1300] *= factor
    attempt = (np.arange(len(steps)) >= 1200).astype(np.int64)
    columns = {"loss": Column.complete(loss), "grad_norm": Column.complete(loss**3)}
    block = Block.from_columns(columns, step=steps, attempt=attempt)
    found = [f for f in detectors().update(block) if f.severity is Severity.ALARM]
    assert [int(steps[f.onset_tick or 0]) for f in found[:1]] == alarms


def test_a_loss_near_0_may_have_a_long_tail() -> None:
    draw = np.random.default_rng(4)
    loss = np.exp(-np.linspace(0.0, 5.0, LENGTH) + draw.normal(0.0, 1.0, LENGTH))
    assert found({"loss": loss}) == []
    loss[AT : AT + 8] *= 300.0
    assert found({"loss": loss})[0].step <= AT + 4


def test_a_loss_that_changes_its_sign_is_no_measure_of_health() -> None:
    loss = np.random.default_rng(5).normal(0.0, 0.05, LENGTH)
    loss[AT : AT + 20] += 2.0
    assert found({"loss": loss}) == []
    assert found({"loss": loss}, Severity.WARN)


def test_a_calm_loss_that_rises_by_half_is_found_although_scores_are_clipped() -> None:
    loss = np.random.default_rng(6).normal(1.97, 0.002, 100)
    loss[60:72] += 0.5
    columns = {"loss": Column.complete(loss)}
    block = Block.from_columns(columns, step=76_000 + np.arange(100))
    assert any(finding.severity is Severity.ALARM for finding in detectors().update(block))


def test_a_loss_near_its_start_has_no_direction() -> None:
    loss = np.random.default_rng(7).normal(1.38, 0.01, LENGTH)
    loss[AT : AT + 16] += 0.03
    assert found({"loss": loss}) == []
    assert found({"loss": loss}, Severity.WARN)
    loss[:100] += 0.6  # one that has fallen has
    assert found({"loss": loss})


def test_a_smooth_curve_that_turns_is_found() -> None:
    loss = 9.0 * np.exp(-np.linspace(0.0, 0.6, 60))
    assert alarm_ticks(thinned(loss)) == []
    turned = np.append(loss, loss[-1] * np.array([1.01, 1.04, 1.08]))
    assert alarm_ticks(thinned(turned)) == [62]


def test_large_norms_that_come_often_are_no_alarm_when_two_meet() -> None:
    rare = run()
    rare["grad_norm"][300:AT:100] *= 12.0
    rare["grad_norm"][AT : AT + 2] *= 12.0
    assert found(rare) == []
    assert found(run(grad_norm=np.full(2, 12.0)))


def test_one_high_loss_in_a_thinned_log_is_an_alarm() -> None:
    signals = {"loss": run(loss=np.array([0.5]))["loss"]}
    columns = {name: Column.complete(values) for name, values in signals.items()}
    block = Block.from_columns(columns, step=100 * np.arange(LENGTH))
    assert [finding.tick for finding in detectors().update(block)] == [AT]


def even_loss(stride: int) -> np.ndarray:
    steps, dice = np.arange(1200), np.random.default_rng(stride)
    return np.asarray((2.2 + 7 * np.exp(-steps / 150)) * np.exp(dice.normal(0, 0.0065, 1200)))


def alarmed(loss: np.ndarray, stride: int) -> np.ndarray:
    block = Block.from_columns({"loss": Column.complete(loss)}, step=stride * np.arange(len(loss)))
    found = detectors().update(block)
    return np.array([one.tick for one in found if one.severity is Severity.ALARM])


@pytest.mark.parametrize(("stride", "tail"), [(1, 8.0), (5, 3.0), (50, 2.0)])
@pytest.mark.parametrize("times_higher", [1.0, 1.5])
def test_spikes_that_keep_coming_do_not_become_usual(
    stride: int, tail: float, times_higher: float
) -> None:
    loss = even_loss(stride)
    onsets = range(700, 940, 30)
    for onset in onsets:
        height = 0.25 * (times_higher if onset == onsets[-1] else 1.0)
        loss[onset:] *= (1 + height) ** np.exp(-np.arange(1200 - onset) / tail)
    ticks = alarmed(loss, stride)
    assert all(((onset <= ticks) & (ticks < onset + 10)).any() for onset in onsets)


@pytest.mark.parametrize("stride", [1, 5, 50])
def test_a_second_level_becomes_usual_and_what_is_above_it_does_not(stride: int) -> None:
    loss = even_loss(stride)
    upper = np.random.default_rng(stride).random(1200) < 0.1
    loss[upper] *= 1.35
    assert (alarmed(loss, stride) < 300).all()
    loss[900:908] = 1.35 * 1.25 * 2.2
    assert (alarmed(loss, stride) >= 900).any()


def thinned(loss: np.ndarray) -> Block:
    return Block.from_columns({"loss": Column.complete(loss)}, step=100 * np.arange(len(loss)))


def alarm_ticks(block: Block) -> list[int]:
    found = detectors().update(block)
    return [finding.tick for finding in found if finding.severity is Severity.ALARM]


@pytest.mark.parametrize("gap", [15, 35])
@pytest.mark.parametrize("length", [12, 20])
def test_in_a_thinned_log_a_spike_does_not_hide_the_next(length: int, gap: int) -> None:
    loss = falling_loss(600, seed=5, noise=0.04)
    second = 400 + length + gap
    loss[400 : 400 + length] += 0.26
    loss[second : second + 3] += 0.36
    ticks = alarm_ticks(thinned(loss))
    assert any(400 <= tick < 400 + length for tick in ticks)
    assert any(second <= tick < second + 3 for tick in ticks)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_a_loss_with_two_levels_does_not_alarm_for_ever(share: float) -> None:
    draw = np.random.default_rng(7)
    loss = falling_loss(900, seed=7, noise=0.04) + np.where(draw.random(900) < share, 0.6, 0.0)
    ticks = alarm_ticks(thinned(loss))
    assert len(ticks) <= 5
    loss[800:803] += 5.0
    assert not {800, 801, 802}.isdisjoint(alarm_ticks(thinned(loss)))


def test_in_a_thinned_log_what_a_run_reaches_by_itself_is_only_a_warning() -> None:
    calm = falling_loss(LENGTH, seed=3, noise=0.04)
    wild = calm.copy()
    wild[100:AT:200] += 0.2
    for loss in (calm, wild):
        loss[AT] = loss[AT - 1] + 0.4
    assert alarm_ticks(thinned(calm)) == [AT]
    (warning,) = [item for item in detectors().update(thinned(wild)) if item.tick >= AT]
    assert (warning.severity, warning.symptom) == (Severity.WARN, Symptom.LOSS_SPIKE)
    wild[AT] += 0.4
    assert alarm_ticks(thinned(wild)) == [AT]


def test_in_a_thinned_log_a_wild_run_alarms_if_the_norm_rises_with_the_loss() -> None:
    loss = falling_loss(LENGTH, seed=3, noise=0.04)
    norm = np.exp(np.random.default_rng(3).normal(-1.0, 0.08, LENGTH))
    loss[100:AT:200] += 0.24
    norm[100:AT:200] *= 1.4
    loss[AT] = loss[AT - 1] + 0.36
    norm[AT] *= 1.8
    columns = {"loss": Column.complete(loss), "grad_norm": Column.complete(norm)}
    assert alarm_ticks(Block.from_columns(columns, step=100 * np.arange(LENGTH))) == [AT]


def test_loss_and_norm_together_need_less_than_each_alone() -> None:
    loss, norm = np.full(3, 0.2), np.full(3, 1.7)
    assert found(run(loss=loss)) == []
    assert found(run(grad_norm=norm)) == []
    (first, *_) = found(run(loss=loss, grad_norm=norm))
    assert first.facts["with_norm"] == 1.0


@pytest.mark.parametrize("gap", [3, 10])
def test_a_short_batch_does_not_hide_a_spike_after_it(gap: int) -> None:
    signals = run(loss=np.full(6, 3.0), grad_norm=np.full(6, 6.0))
    signals["tokens"] = np.full(LENGTH, 4096.0)
    signals["tokens"][AT - gap] = 512.0
    signals["loss"][AT - gap] += 0.5
    assert found(signals)[0].step in (AT, AT + 1)


def test_a_longer_sequence_raises_no_alarm() -> None:
    signals = run(loss=np.full(LENGTH - AT, 0.3))
    signals["tokens"] = np.where(np.arange(LENGTH) < AT, 4096.0, 8192.0)
    assert found(signals) == []


def test_a_slow_ramp_is_found_long_before_its_peak() -> None:
    first, *_ = found(run(loss=np.linspace(0, 1.5, 60)))
    assert AT < first.step < AT + 15


def test_a_rising_norm_leads_the_loss() -> None:
    first, *_ = found(run(grad_norm=np.array([3.9, 9.9, 66.0, 600.0])))
    assert first.symptom is Symptom.GRADIENT_SPIKE
    assert first.step == AT + 1


def test_one_large_norm_is_a_warning_however_large() -> None:
    (warning,) = found(run(grad_norm=np.array([4.0])), Severity.WARN)
    assert warning.severity is Severity.WARN
    assert warning.facts["ratio"] == pytest.approx(4.0, rel=0.3)
    assert found(run(grad_norm=np.array([40.0]))) == []


def test_three_norms_that_double_are_an_alarm() -> None:
    assert found(run(grad_norm=np.full(3, 2.5)))[0].step <= AT + 2


def test_a_doubled_update_is_a_warning() -> None:
    (warning,) = found(run(update_norm=np.array([2.5])), Severity.WARN)
    assert warning.symptom is Symptom.UPDATE_SPIKE


def test_an_update_that_grows_with_the_learning_rate_is_no_spike() -> None:
    signals = run(update_norm=np.full(30, 3.0))
    assert found(signals)
    # The same updates at three times the rate: each is as large as the rate makes it.
    per_rate = run()["update_norm"]
    assert found({**signals, "update_per_lr": per_rate}, Severity.WARN) == []
    per_rate[AT : AT + 3] *= 4.0
    first, *_ = found({**signals, "update_per_lr": per_rate})
    assert (first.symptom, first.signal) == (Symptom.UPDATE_SPIKE, "update_per_lr")


@pytest.mark.parametrize("gap", [40, 60])
def test_one_spike_does_not_hide_the_next(gap: int) -> None:
    loss, norm = np.zeros(gap + 10), np.ones(gap + 10)
    loss[:10] = loss[gap:] = np.linspace(2.0, 0.2, 10)
    norm[:10] = norm[gap:] = np.geomspace(100.0, 1.2, 10)
    steps = [finding.step for finding in found(run(loss=loss, grad_norm=norm))]
    assert {AT + 1, AT + gap + 1} <= set(steps)


def test_a_nan_does_not_hide_what_comes_after_it() -> None:
    signals = run(loss=np.concatenate([np.zeros(20), np.full(5, 0.6)]))
    signals["loss"][AT] = signals["grad_norm"][AT] = np.nan
    steps = [finding.step for finding in found(signals) if finding.signal == "loss"]
    assert steps[:2] == [AT, AT + 21]


def test_a_moved_level_is_reported_and_then_normal() -> None:
    steps = [finding.step for finding in found(run(loss=np.full(400, 0.12)))]
    assert AT < steps[0] < AT + 160
    assert max(steps) < AT + 200


@pytest.mark.parametrize("length", [60, 90])
def test_a_level_that_rises_for_less_than_96_records_is_only_a_warning(length: int) -> None:
    (warning, *_) = found(run(loss=np.full(length, 0.06)), Severity.WARN)
    assert warning.symptom is Symptom.LEVEL_SHIFT
    assert found(run(loss=np.full(length, 0.06))) == []


def test_a_level_that_keeps_falling_back_is_only_a_warning() -> None:
    tail = np.concatenate([np.full(40, 0.09), np.linspace(0.09, 0.0, 140)])
    assert Symptom.LEVEL_SHIFT in {item.symptom for item in found(run(loss=tail), Severity.WARN)}
    assert Symptom.LEVEL_SHIFT not in {item.symptom for item in found(run(loss=tail))}


def test_a_slow_rise_with_an_exploding_norm_is_found_early_in_a_thinned_log() -> None:
    draw = np.random.default_rng(11)
    loss = falling_loss(500, seed=11, noise=0.04)
    norm = np.exp(draw.normal(-1.0, 0.08, 500))
    loss[400:] += 0.006 * np.arange(100)
    norm[400:] *= np.minimum(1.6 ** np.arange(100), 1e6)
    columns = {"loss": Column.complete(loss), "grad_norm": Column.complete(norm)}
    ticks = alarm_ticks(Block.from_columns(columns, step=100 * np.arange(500)))
    assert 400 < min(ticks) <= 412


def test_a_drift_is_a_level_that_rose() -> None:
    drift = 4e-4 * np.arange(400)
    assert Symptom.LEVEL_SHIFT in {finding.symptom for finding in found(run(loss=drift))}


def test_the_end_of_easy_stretches_of_data_is_no_level_shift() -> None:
    swings = run()["loss"]
    is_easy = np.arange(LENGTH) % 48 < 16
    swings -= np.where(is_easy, 0.18, 0.0)
    ended = swings.copy()
    ended[AT:] += np.where(is_easy, 0.18, 0.0)[AT:]
    assert found({"loss": ended}, Severity.WARN) == []
    moved = swings.copy()
    moved[AT:] += 0.06  # what the end of the easy stretches adds to the mean
    assert found({"loss": moved})


def test_smoothed_values_make_findings_rarer_and_less_confident() -> None:
    signals = run(loss=np.full(3, 0.22))
    block = block_of({"loss": signals["loss"]}, first_step=0)
    assert detectors().update(block)
    doubted = Block.from_columns(
        block.columns, step=block.step, qualities={"loss": Quality.SMOOTHED}
    )
    assert not detectors().update(doubted)
    signals = run(loss=np.full(20, 2.0))
    (first, *_) = detectors().update(
        Block.from_columns(
            {"loss": Column.complete(signals["loss"])},
            step=block.step,
            qualities={"loss": Quality.SMOOTHED},
        )
    )
    assert first.confidence < 1


def test_the_threshold_scale_raises_every_threshold() -> None:
    block = block_of(run(loss=np.full(3, 0.25)), first_step=0)
    assert detectors(threshold_scale=1.0).update(block)
    assert not detectors(threshold_scale=2.0).update(block)
