"""Stalls and a lower pace, and what is neither."""

import numpy as np
import pytest
from tests.detect.feeding import alarms, at, block, findings

from trimtab.core.findings import Severity, Symptom
from trimtab.detect.run.throughput import Throughput

LENGTH, AT = 500, 300

BUSY = np.where(np.arange(LENGTH - AT) // 8 % 2, 2.5, 8.0)
"""How much slower the steps of a machine are that is busy with other work."""


def seconds(seed: int = 0) -> np.ndarray:
    return np.asarray(0.5 * np.exp(np.random.default_rng(seed).normal(0, 0.1, LENGTH)))


def test_a_steady_pace_raises_nothing() -> None:
    assert findings(Throughput, block(LENGTH, step_seconds=seconds())) == []


def test_stalls_of_a_busy_machine_are_warnings() -> None:
    clock = seconds()
    clock[[AT, AT + 5, AT + 10, AT + 15]] = 20.0
    for waited in ({}, {"data_seconds": 0.1 * clock}):
        (warning,) = findings(Throughput, block(LENGTH, step_seconds=clock, **waited))
        assert (warning.step, warning.severity) == (AT, Severity.WARN)


def test_the_third_stall_that_waits_for_data_is_an_alarm() -> None:
    clock, waited = seconds(), np.full(LENGTH, 0.01)
    clock[[AT, AT + 3, AT + 5, AT + 10, AT + 15]] = 20.0
    waited[[AT, AT + 5, AT + 10, AT + 15]] = 19.0
    warning, alarm = findings(Throughput, block(LENGTH, step_seconds=clock, data_seconds=waited))
    assert (warning.step, warning.severity) == (AT, Severity.WARN)
    assert (alarm.step, alarm.symptom) == (AT + 10, Symptom.STALL)
    assert alarm.severity is Severity.ALARM


@pytest.mark.parametrize("kind", ["evaluation", "checkpoint", "resume"])
def test_a_known_pause_is_no_stall(kind: str) -> None:
    clock = seconds()
    clock[[AT, AT + 20]] = 20.0
    run = block(LENGTH, step_seconds=clock, events=[at(kind, AT), at(kind, AT + 20)])
    assert findings(Throughput, run) == []


def test_regular_pauses_of_a_thinned_log_are_warnings_at_most() -> None:
    clock = seconds()
    clock[100::10] = 20.0
    run = block(LENGTH, step=100 * np.arange(LENGTH), step_seconds=clock)
    assert alarms(Throughput, run) == []
    assert len(findings(Throughput, run)) == 1


@pytest.mark.parametrize("signal", ["step_seconds", "tokens_per_second"])
def test_a_pace_that_is_lower_and_steady_is_an_alarm(signal: str) -> None:
    clock = seconds()
    clock[AT:] *= 3.0
    values = clock if signal == "step_seconds" else 1e5 / clock
    (alarm,) = findings(Throughput, block(LENGTH, **{signal: values}))
    assert (alarm.symptom, alarm.severity) == (Symptom.SLOW, Severity.ALARM)
    assert AT + 36 <= alarm.step <= AT + 48


@pytest.mark.parametrize("signal", ["step_seconds", "tokens_per_second"])
def test_a_lower_pace_is_a_warning_and_an_alarm_once_it_has_lasted(signal: str) -> None:
    clock = seconds()
    clock[AT:] *= BUSY
    values = clock if signal == "step_seconds" else 1e5 / clock
    warning, alarm = findings(Throughput, block(LENGTH, **{signal: values}))
    assert (warning.symptom, warning.severity) == (Symptom.SLOW, Severity.WARN)
    assert AT + 36 <= warning.step <= AT + 48
    assert (alarm.symptom, alarm.severity) == (Symptom.SLOW, Severity.ALARM)
    assert (alarm.signal, alarm.step) == (signal, warning.step + 128)


@pytest.mark.parametrize("records", [60, 150])
def test_a_lower_pace_that_comes_back_is_only_a_warning(records: int) -> None:
    clock = seconds()
    clock[AT : AT + records] *= BUSY[:records]
    (warning,) = findings(Throughput, block(LENGTH, step_seconds=clock))
    assert warning.severity is Severity.WARN


def test_a_higher_pace_and_an_announced_change_are_fine() -> None:
    clock = seconds()
    clock[AT:] *= 0.3
    assert findings(Throughput, block(LENGTH, step_seconds=clock)) == []
    clock[AT:] *= 10
    run = block(LENGTH, step_seconds=clock, events=[at("planned change", AT)])
    assert alarms(Throughput, run) == []


def test_a_new_batch_size_explains_a_new_pace() -> None:
    clock, tokens = seconds(), np.full(LENGTH, 4096.0)
    clock[AT:] *= 4
    tokens[AT:] *= 4
    assert alarms(Throughput, block(LENGTH, step_seconds=clock, tokens=tokens)) == []
