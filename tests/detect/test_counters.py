"""Counters, batches, schedules, loss scales and zeros: what is counted rather than measured."""

import dataclasses

import numpy as np
import pytest
from tests.detect.feeding import alarms, at, block, findings

from trimtab.core.block import Column, Event
from trimtab.core.findings import Severity, Symptom
from trimtab.detect.detector_set import DetectorSet
from trimtab.detect.run.progress import (
    ABOVE,
    BATCHES_REMEMBERED,
    MAX_STANDING,
    CounterOrder,
    LrSchedule,
    RepeatedBatches,
)
from trimtab.detect.state.hard_limits import (
    MAX_CONSTANT,
    MIN_TICKS,
    AttentionLogits,
    FrozenUpdates,
    LossScale,
)

LENGTH, AT = 300, 200


def test_a_step_that_goes_back_is_a_warning_and_in_a_new_attempt_nothing() -> None:
    steps = np.arange(LENGTH)
    steps[AT:] -= 50
    (warning,) = findings(CounterOrder, block(LENGTH, step=steps, loss=1.0))
    assert (warning.symptom, warning.severity) == (Symptom.WENT_BACK, Severity.WARN)
    attempt = np.asarray(np.arange(LENGTH) >= AT, dtype=np.int64)
    assert findings(CounterOrder, block(LENGTH, step=steps, loss=1.0, attempt=attempt)) == []


def test_data_that_goes_back_is_an_alarm_and_the_next_epoch_is_not() -> None:
    place = np.arange(100, 100 + LENGTH)
    place[AT:] -= 30
    (alarm,) = alarms(CounterOrder, block(LENGTH, loss=1.0, data_position=place))
    assert (alarm.symptom, alarm.step, alarm.expected) == (Symptom.DATA_BACK, AT, 299.0)
    epochs = np.arange(LENGTH) % 90
    assert alarms(CounterOrder, block(LENGTH, loss=1.0, data_position=epochs)) == []


def test_a_count_that_starts_again_is_a_reset_state_and_one_that_stands_still_no_update() -> None:
    count = np.arange(LENGTH, dtype=np.float64)
    lost, stands = count.copy(), count.copy()
    lost[AT:] -= AT - 1
    stands[AT:] = AT - 1
    (alarm,) = alarms(CounterOrder, block(LENGTH, loss=1.0, adam_step=lost))
    assert (alarm.symptom, alarm.step) == (Symptom.STATE_RESET, AT)
    (alarm,) = alarms(CounterOrder, block(LENGTH, loss=1.0, adam_step=stands))
    assert (alarm.symptom, alarm.step) == (Symptom.FROZEN, AT + MAX_STANDING - 1)


@pytest.mark.parametrize(
    ("kind", "is_believed"),
    [("planned change", True), ("Change of phase", True), ("setting changed", False), ("x", False)],
)
def test_a_count_that_falls_after_an_announced_change_is_meant(
    kind: str, is_believed: bool
) -> None:
    count = np.arange(LENGTH, dtype=np.float64)
    count[AT:] -= AT - 1
    announced = Event(kind=kind, tick=AT, step=AT)
    run = dataclasses.replace(block(LENGTH, loss=1.0, adam_step=count), events=(announced,))
    found = DetectorSet([CounterOrder()]).update(run)
    assert (not found) is is_believed


def test_a_count_stands_still_while_steps_are_discarded() -> None:
    count, discarded = np.arange(LENGTH, dtype=np.float64), np.zeros(LENGTH)
    count[AT:] = AT - 1
    discarded[AT:] = 1.0
    run = block(LENGTH, loss=1.0, adam_step=count, discarded=discarded)
    assert alarms(CounterOrder, run) == []


def test_a_loss_that_is_no_longer_recorded_is_missing() -> None:
    loss = np.ones(LENGTH)
    loss[AT:] = np.nan  # missing
    (alarm,) = alarms(CounterOrder, block(LENGTH, loss=loss, grad_norm=1.0))
    assert (alarm.symptom, alarm.step) == (Symptom.MISSING_LOSS, AT + 63)


def test_a_loss_that_was_always_rare_is_waited_for() -> None:
    loss = np.full(LENGTH, np.nan)
    loss[:AT:20] = 1.0
    assert alarms(CounterOrder, block(LENGTH, loss=loss, grad_norm=1.0)) == []


def prints(length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(0).permutation(length).astype(np.float64) + 1e9


def test_a_batch_served_again_and_again_is_an_alarm_at_its_second_repetition() -> None:
    batches = prints()
    batches[AT : AT + 30] = batches[AT - 1]
    warning, alarm = findings(RepeatedBatches, block(LENGTH, fingerprint=batches))
    assert (warning.step, warning.severity) == (AT, Severity.WARN)
    assert (alarm.step, alarm.severity) == (AT + 1, Severity.ALARM)


def test_data_that_was_rewound_is_an_alarm() -> None:
    batches = prints()
    batches[AT : AT + 50] = batches[AT - 80 : AT - 30]
    assert [
        alarm.step for alarm in alarms(RepeatedBatches, block(LENGTH, fingerprint=batches))
    ] == [AT + 1]


def test_epochs_in_the_same_order_and_a_new_attempt_are_no_fault() -> None:
    epochs = np.tile(prints(100), 3)
    assert findings(RepeatedBatches, block(LENGTH, fingerprint=epochs)) == []
    batches = prints()
    batches[AT : AT + 50] = batches[AT - 80 : AT - 30]
    attempt = np.asarray(np.arange(LENGTH) >= AT, dtype=np.int64)
    assert findings(RepeatedBatches, block(LENGTH, fingerprint=batches, attempt=attempt)) == []


def test_one_equal_checksum_is_only_a_warning() -> None:
    batches = prints()
    batches[AT] = batches[50]
    assert [
        item.severity for item in findings(RepeatedBatches, block(LENGTH, fingerprint=batches))
    ] == [Severity.WARN]


def test_equal_batches_at_random_distances_are_only_warnings() -> None:
    batches = prints()
    batches[[AT, AT + 3, AT + 9]] = batches[[50, 80, 20]]
    found = findings(RepeatedBatches, block(LENGTH, fingerprint=batches))
    assert [item.severity for item in found] == [Severity.WARN] * 3


def test_the_memory_of_batches_is_bounded() -> None:
    detector = RepeatedBatches()
    detector.update_many(
        block(BATCHES_REMEMBERED + 500, fingerprint=np.arange(BATCHES_REMEMBERED + 500) + 1e9)
    )
    assert len(detector._places) == BATCHES_REMEMBERED


def cosine(turn: int | None = None) -> np.ndarray:
    rate = 1e-3 * np.cos(0.5 * np.pi * np.arange(LENGTH) / LENGTH)
    if turn is not None:
        rate[turn:] = rate[turn] ** 2 / rate[turn:]
    return np.asarray(rate)


def test_a_rate_that_rises_in_its_decay_is_reported_once() -> None:
    rate = cosine(AT)
    (alarm,) = alarms(LrSchedule, block(LENGTH, lr=rate))
    assert alarm.symptom is Symptom.LR_RISING
    assert alarm.step == np.flatnonzero(rate > ABOVE * rate[0])[0]  # beyond where it has been


def test_a_rate_that_returns_to_where_it_was_is_a_schedule_with_cycles() -> None:
    cycles = 1e-3 * (1.1 + np.cos(6 * np.pi * np.arange(LENGTH) / LENGTH))
    assert alarms(LrSchedule, block(LENGTH, lr=cycles)) == []


@pytest.mark.parametrize(
    "rate",
    [
        np.full(LENGTH, 1e-3),
        cosine(),
        np.concatenate([np.linspace(0, 1e-3, 200), np.linspace(1e-3, 0, 100)]),
        np.round(cosine(), 5),
        1e-3 * 0.5 ** (np.arange(LENGTH) // 60),
    ],
    ids=["constant", "cosine", "long warm-up", "rounded", "steps"],
)
def test_planned_rates_do_not_rise_in_their_decay(rate: np.ndarray) -> None:
    assert alarms(LrSchedule, block(LENGTH, lr=rate)) == []


def test_a_warm_up_after_a_resume_is_planned() -> None:
    assert alarms(LrSchedule, block(LENGTH, lr=cosine(AT), events=[at("resume", AT)])) == []


def test_falls_of_the_scale_become_a_warning_and_then_a_collapse() -> None:
    scale = np.full(LENGTH, 65536.0)
    scale[AT:] *= 0.5 ** np.arange(1, LENGTH - AT + 1)
    found = findings(LossScale, block(LENGTH, loss_scale=scale))
    assert [(item.symptom, item.severity, item.step) for item in found] == [
        (Symptom.OVERFLOWS, Severity.WARN, AT + 2),
        (Symptom.SCALE_COLLAPSE, Severity.ALARM, AT + 5),
        *((Symptom.SCALE_COLLAPSE, Severity.ALARM, AT + step) for step in range(16, 100, 17)),
    ]


def test_a_scaler_that_finds_its_range_and_a_working_one_raise_nothing() -> None:
    search = 2.0**24 * 0.5 ** np.minimum(np.arange(LENGTH), 9)
    assert findings(LossScale, block(LENGTH, loss_scale=search)) == []
    thinned = 2.0 ** (10 + np.arange(LENGTH) % 2)
    steps = 1000 * np.arange(LENGTH)
    assert findings(LossScale, block(LENGTH, loss_scale=thinned, step=steps)) == []


def test_a_scale_that_never_moves_is_a_note() -> None:
    run = block(MAX_CONSTANT + 10, loss_scale=1024.0)
    detector = LossScale()
    found = [item for piece in run.cut(5_000) for item in detector.update_many(piece)]
    assert [(item.symptom, item.severity) for item in found] == [
        (Symptom.SCALE_FROZEN, Severity.INFO)
    ]
    assert found[0].step == MAX_CONSTANT


def test_a_group_that_is_not_updated_is_reported_once() -> None:
    update = np.ones(LENGTH)
    update[AT:] = 0.0
    run = block(LENGTH, **{"update_norm": 1.0, "update_norm/mlp": update, "lr": 1e-3})
    (alarm,) = alarms(FrozenUpdates, run)
    assert (alarm.symptom, alarm.signal) == (Symptom.FROZEN, "update_norm/mlp")
    assert alarm.step == AT + MIN_TICKS - 1


def test_zero_updates_are_fine_at_a_rate_of_zero_in_discarded_steps_and_now_and_then() -> None:
    update = np.ones(LENGTH)
    update[AT:] = 0.0
    assert alarms(FrozenUpdates, block(LENGTH, update_norm=update, lr=update)) == []
    assert alarms(FrozenUpdates, block(LENGTH, update_norm=update, discarded=1.0 - update)) == []
    update[AT::10] = 1.0
    assert alarms(FrozenUpdates, block(LENGTH, update_norm=update, lr=1e-3)) == []


def test_zeros_are_counted_in_ticks_where_only_some_steps_are_measured() -> None:
    update = np.ones(LENGTH)
    update[AT:] = 0.0
    present = np.arange(LENGTH) % 2 == 1
    seen = block(LENGTH, lr=1e-3)
    columns = {**seen.columns, "update_norm": Column(update, present)}
    (alarm,) = alarms(FrozenUpdates, dataclasses.replace(seen, columns=columns))
    assert alarm.step - AT in (MIN_TICKS, MIN_TICKS + 1)


def test_large_logits_are_reported_once_per_level() -> None:
    logits = np.linspace(0, 200, LENGTH)
    warning, alarm = findings(AttentionLogits, block(LENGTH, max_attention_logit=logits))
    assert (warning.severity, alarm.severity) == (Severity.WARN, Severity.ALARM)
    assert 50 < warning.value < 60
    assert 100 < alarm.value < 110
    grows = findings(AttentionLogits, block(LENGTH, max_attention_logit=2 * logits))
    assert len(grows) == 3  # over 50, over 100, and doubled
    assert 200 < grows[-1].value < 250
    logits = np.where(np.arange(LENGTH) % 7 == 0, 1.0, 500.0)
    assert findings(AttentionLogits, block(LENGTH, max_attention_logit=logits)) == []


def test_large_attention_logits_are_those_of_a_layer() -> None:
    names = ("max_attention_logit", "max_attention_logit/h.0.attn", "max_attention_logit/h.1.attn")
    columns = dict(zip(names, (np.full(LENGTH, value) for value in (80.0, 3.0, 80.0)), strict=True))
    (warning,) = findings(AttentionLogits, block(LENGTH, **columns))
    assert warning.signal == "max_attention_logit/h.1.attn"
