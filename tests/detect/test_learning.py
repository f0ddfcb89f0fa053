"""Losses that do not go on after a resume, or never become better than guessing."""

import numpy as np
from tests.detect.feeding import alarms, at, block

from trimtab.core.findings import Symptom
from trimtab.detect.loss.no_learning import PATIENCE, NoLearning
from trimtab.detect.loss.resume_gap import Resume

LENGTH, AT = 800, 300


def loss(seed: int = 0) -> np.ndarray:
    return np.asarray(3.0 + np.random.default_rng(seed).normal(0, 0.05, LENGTH))


def test_a_loss_that_is_higher_after_a_resume_is_told() -> None:
    values = loss()
    values[AT:] += 0.3
    (alarm,) = alarms(Resume, block(LENGTH, loss=values, events=[at("resume", AT)]))
    assert (alarm.symptom, alarm.step) == (Symptom.RESUME_GAP, AT + 7)
    assert alarms(Resume, block(LENGTH, loss=values)) == []


def test_a_right_resume_and_a_change_at_the_same_time_are_left_alone() -> None:
    for seed in range(20):
        assert alarms(Resume, block(LENGTH, loss=loss(seed), events=[at("resume", AT)])) == []
    values = loss()
    values[AT:] += 0.3
    both = [at("resume", AT), at("planned change", AT)]
    assert alarms(Resume, block(LENGTH, loss=values, events=both)) == []


def test_a_model_no_better_than_token_frequencies_is_told_once() -> None:
    run = block(LENGTH, loss=loss(), token_rarity=3.0)
    (alarm,) = alarms(NoLearning, run)
    assert (alarm.symptom, alarm.step) == (Symptom.NO_LEARNING, PATIENCE - 1)


def test_a_model_that_learns_is_left_alone_and_one_that_forgets_is_not() -> None:
    assert alarms(NoLearning, block(LENGTH, loss=loss() - 0.5, token_rarity=3.0)) == []
    values = loss() - 0.5
    values[600:] += 1.0
    (alarm,) = alarms(NoLearning, block(LENGTH, loss=values, token_rarity=3.0))
    assert alarm.step >= 600
