"""Losses that do not continue after a resume, or never become better than guessing."""

import numpy as np
from tests.detect.feeding import alarms, at, block

from trimtab.core.findings import Symptom
from trimtab.detect.loss.no_learning import MIN_RECORDS, NoLearning
from trimtab.detect.loss.resume_gap import ResumeGap

LENGTH, AT = 800, 300


def loss(seed: int = 0) -> np.ndarray:
    return np.asarray(3.0 + np.random.default_rng(seed).normal(0, 0.05, LENGTH))


def test_a_loss_that_is_higher_after_a_resume_is_reported() -> None:
    values = loss()
    values[AT:] += 0.3
    (alarm,) = alarms(ResumeGap, block(LENGTH, loss=values, events=[at("resume", AT)]))
    assert (alarm.symptom, alarm.step) == (Symptom.RESUME_GAP, AT + 7)
    assert alarms(ResumeGap, block(LENGTH, loss=values)) == []


def test_a_correct_resume_and_a_change_at_the_same_time_raise_nothing() -> None:
    for seed in range(20):
        assert alarms(ResumeGap, block(LENGTH, loss=loss(seed), events=[at("resume", AT)])) == []
    values = loss()
    values[AT:] += 0.3
    both = [at("resume", AT), at("planned change", AT)]
    assert alarms(ResumeGap, block(LENGTH, loss=values, events=both)) == []


def test_a_model_no_better_than_token_frequencies_is_reported_once() -> None:
    run = block(LENGTH, loss=loss(), token_rarity=3.0)
    (alarm,) = alarms(NoLearning, run)
    assert (alarm.symptom, alarm.step) == (Symptom.NO_LEARNING, MIN_RECORDS - 1)


def test_a_model_that_learns_raises_nothing_and_one_that_forgets_an_alarm() -> None:
    assert alarms(NoLearning, block(LENGTH, loss=loss() - 0.5, token_rarity=3.0)) == []
    values = loss() - 0.5
    values[600:] += 1.0
    (alarm,) = alarms(NoLearning, block(LENGTH, loss=values, token_rarity=3.0))
    assert alarm.step >= 600
