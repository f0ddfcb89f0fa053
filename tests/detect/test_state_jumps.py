"""Signals of the state that jump in one step, in runs of known shape."""

import numpy as np
import pytest
from tests.detect.feeding import alarms, at, block, findings

from trimtab.core.findings import Severity, Symptom
from trimtab.detect.state.jumps import JumpLimits, JumpTest, StateJumps

LENGTH, AT = 600, 400
LIMITS = JumpLimits(up=2.0, down=3.0, floor=1e-3)


def walk(seed: int = 0, size: float = 1e-4) -> np.ndarray:
    return np.asarray(100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, size, LENGTH))))


def noise(seed: int = 1, size: float = 0.05) -> np.ndarray:
    return np.asarray(np.exp(np.random.default_rng(seed).normal(-3, size, LENGTH)))


def moved(values: np.ndarray, factor: float, steps: int = LENGTH) -> np.ndarray:
    values = values.copy()
    values[AT : AT + steps] *= factor
    return values


def test_calm_signals_do_not_jump() -> None:
    run = block(LENGTH, param_norm=walk(), update_norm=noise(), adam_v_norm=walk(2, 0.01), lr=1e-3)
    assert findings(StateJumps, run) == []


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_weight_norm_that_jumps_is_reported_once(factor: float) -> None:
    run = block(LENGTH, **{"param_norm/mlp": moved(walk(), factor)})
    (alarm,) = alarms(StateJumps, run)
    assert (alarm.symptom, alarm.step) == (Symptom.NORM_DRIFT, AT)
    assert alarm.expected == pytest.approx(alarm.value / factor, rel=1e-3)


def test_a_jump_and_the_jump_back_are_two() -> None:
    run = block(LENGTH, param_norm=moved(walk(), 1.05, 100))
    assert [alarm.step for alarm in alarms(StateJumps, run)] == [AT, AT + 100]


def test_one_jump_does_not_hide_a_larger_one_soon_after() -> None:
    values = moved(walk(), 1.02)
    values[AT + 20 :] *= 2.0
    assert [alarm.step for alarm in alarms(StateJumps, block(LENGTH, param_norm=values))] == [
        AT,
        AT + 20,
    ]


def test_a_second_moment_that_shrinks_is_a_lost_state_and_one_that_grows_a_gradient() -> None:
    (lost,) = alarms(StateJumps, block(LENGTH, adam_v_norm=moved(walk(2, 0.01), 0.5)))
    assert lost.symptom is Symptom.STATE_RESET
    assert alarms(StateJumps, block(LENGTH, adam_v_norm=moved(walk(2, 0.01), 1.5))) == []


@pytest.mark.parametrize("times", [7.0, 20.0, 45.0])
def test_one_gradient_may_raise_the_second_moment_by_any_factor(times: float) -> None:
    beta2, random = 0.999, np.random.default_rng(4)
    square = np.exp(random.normal(0, 0.5, LENGTH))
    square[AT] = square[:AT].max() * times**2
    v = np.ones(LENGTH)
    for row in range(1, LENGTH):
        v[row] = beta2 * v[row - 1] + (1 - beta2) * square[row]
    # beta2 of 0.999 lets v move by a few parts in 1,000: the calmest signal of a run.
    assert alarms(StateJumps, block(LENGTH, **{"adam_v_norm/embedding": v})) == []


def test_a_first_moment_that_shrinks_is_a_warning_because_one_gradient_can_do_that() -> None:
    (warning,) = findings(StateJumps, block(LENGTH, adam_m_norm=moved(walk(2, 0.01), 0.3)))
    assert (warning.symptom, warning.severity) == (Symptom.STATE_RESET, Severity.WARN)


def test_the_updates_of_an_embedding_may_fall_further_than_those_of_other_groups() -> None:
    halved = moved(noise(size=0.02), 0.65)
    for part, is_alarm in (("/attention", True), ("/embedding", False), ("", False)):
        run = block(LENGTH, **{f"update_norm{part}": halved, "lr": 1e-3})
        assert bool(alarms(StateJumps, run)) is is_alarm
    tenth = block(LENGTH, **{"update_norm/embedding": moved(noise(size=0.02), 0.1), "lr": 1e-3})
    assert [alarm.symptom for alarm in alarms(StateJumps, tenth)] == [Symptom.UPDATE_SHIFT]


def test_an_update_is_divided_by_the_learning_rate() -> None:
    rate = np.full(LENGTH, 1e-3)
    rate[AT:] = 1e-4
    update = noise()
    update[AT:] /= 10
    steady = alarms(StateJumps, block(LENGTH, update_norm=update, lr=rate))
    assert steady == []
    (drop,) = alarms(StateJumps, block(LENGTH, update_norm=update, lr=1e-3))
    assert (drop.symptom, drop.step) == (Symptom.UPDATE_SHIFT, AT)


def test_a_rate_that_jumps_up_is_an_alarm_and_one_that_steps_down_a_warning() -> None:
    rate = 1e-3 * (1 + np.cos(np.arange(LENGTH) / LENGTH))
    (up,) = findings(StateJumps, block(LENGTH, lr=moved(rate, 3.0)))
    (down,) = findings(StateJumps, block(LENGTH, lr=moved(rate, 0.1)))
    assert (up.symptom, up.severity) == (Symptom.LR_JUMP, Severity.ALARM)
    assert (down.symptom, down.severity) == (Symptom.LR_JUMP, Severity.WARN)


def test_warm_up_cosine_steps_and_a_restart_from_nothing_are_no_jumps() -> None:
    steps = np.arange(LENGTH)
    warm = np.minimum(1.0, (steps + 1) / 100) * (1 + np.cos(np.pi * steps / LENGTH)) * 1e-3
    stairs = 1e-3 * 0.1 ** (steps // 150)
    for rate in (warm, stairs, np.full(LENGTH, 1e-3)):
        assert alarms(StateJumps, block(LENGTH, lr=rate)) == []


@pytest.mark.parametrize("start", [12, 20, 63])
def test_early_on_only_a_rate_that_no_warm_up_has_is_a_jump(start: int) -> None:
    steps = np.arange(LENGTH)
    for factor, expected in ((3.0, []), (100.0, [start])):
        rate = np.where(steps < start, 1e-5, factor * 1e-5)
        assert [alarm.step for alarm in alarms(StateJumps, block(LENGTH, lr=rate))] == expected


def test_announced_changes_and_new_attempts_are_no_jumps() -> None:
    jumped = moved(walk(), 1.5)
    changed = block(LENGTH, param_norm=jumped, events=[at("planned change", AT)])
    assert alarms(StateJumps, changed) == []
    attempt = np.asarray(np.arange(LENGTH) >= AT, dtype=np.int64)
    again = block(LENGTH, param_norm=jumped, attempt=attempt)
    assert alarms(StateJumps, again) == []


def test_a_resume_is_no_excuse() -> None:
    run = block(LENGTH, param_norm=moved(walk(), 1.5), events=[at("resume", AT)])
    assert [alarm.step for alarm in alarms(StateJumps, run)] == [AT]


def test_more_steps_than_usual_between_two_records_may_move_a_signal_further() -> None:
    steps = np.arange(LENGTH)
    steps[AT:] += 500
    run = block(LENGTH, step=steps, param_norm=moved(walk(), 1.5))
    assert alarms(StateJumps, run) == []


def test_values_that_are_not_positive_numbers_are_skipped() -> None:
    values = walk()
    values[[AT, AT + 1, AT + 2]] = [np.inf, 0.0, -1.0]
    assert alarms(StateJumps, block(LENGTH, param_norm=values)) == []


def test_endless_jumps_are_not_reported_endlessly() -> None:
    values = walk()
    values[AT:][::2] *= 3.0
    found = alarms(StateJumps, block(LENGTH, param_norm=values))
    assert 1 <= len(found) <= 12


def test_nothing_is_judged_before_the_past_is_known() -> None:
    test = JumpTest(LIMITS)
    assert list(test.update(np.array([1.0, 1.0, 50.0, 1.0]), np.arange(4))) == []
