"""Losses that do not continue after a resume, or never become better than guessing."""

import numpy as np
import pytest
from tests.detect.feeding import alarms, at, block

from trimtab.core.findings import Symptom
from trimtab.detect.loss.without_baseline import MIN_RECORDS, GrossLoss, NoLearning, ResumeGap

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
    for seed in range(5):
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


def test_a_run_from_scratch_that_never_learns_is_reported() -> None:
    values = 6.9 + np.random.default_rng(0).normal(0, 0.02, 400)
    steps = 100 * np.arange(400)
    (alarm,) = alarms(NoLearning, block(400, loss=values, step=steps))
    assert alarm.symptom is Symptom.NO_LEARNING
    assert alarm.step <= 100 * 140
    slow = values * np.linspace(1.0, 0.8, 400)
    assert alarms(NoLearning, block(400, loss=slow, step=steps)) == []


def test_a_fine_tuned_or_resumed_run_may_stay_where_it_is() -> None:
    steps = 100 * np.arange(400)
    flat = np.random.default_rng(0).normal(0, 0.02, 400)
    assert alarms(NoLearning, block(400, loss=1.2 + flat, step=steps)) == []
    assert alarms(NoLearning, block(400, loss=6.9 + flat, step=5000 + steps)) == []


def test_a_gross_loss_among_the_first_records_is_reported_once() -> None:
    values = 2.0 + 9.0 * 0.9 ** np.arange(60)
    values[[3, 4]] = 36.0  # a hump of a healthy start
    assert alarms(GrossLoss, block(60, loss=values)) == []
    values[12:15] = 6e7
    (alarm,) = alarms(GrossLoss, block(60, loss=values))
    assert (alarm.symptom, alarm.step) == (Symptom.LOSS_SPIKE, 13)


def test_one_loss_far_above_all_of_the_run_is_reported_unless_it_is_a_surrogate() -> None:
    values = loss()
    values[AT] = 8e7
    (alarm,) = alarms(GrossLoss, block(LENGTH, loss=values))
    assert (alarm.symptom, alarm.step, alarm.value) == (Symptom.LOSS_SPIKE, AT, 8e7)
    values[AT] = 90 * values[:AT].max()
    assert alarms(GrossLoss, block(LENGTH, loss=values)) == []
    values[AT] = 8e7
    assert alarms(GrossLoss, block(LENGTH, loss=values, reward=np.ones(LENGTH))) == []


def test_a_loss_that_triples_at_every_record_from_the_start_is_gross() -> None:
    values = 0.5 * 3.0 ** np.maximum(np.arange(20) - 4, 0)
    assert [alarm.step for alarm in alarms(GrossLoss, block(20, loss=values))] == [7]


def test_a_gross_loss_shortly_after_a_planned_change_is_reported() -> None:
    values = loss()
    values[AT + 5 : AT + 8] = 1e4
    run = block(LENGTH, loss=values, events=[at("planned change", AT)])
    assert [alarm.step for alarm in alarms(GrossLoss, run)] == [AT + 6]


def test_an_even_start_that_rises_is_gross() -> None:
    even = np.array([2.07, 2.05, 2.06, 2.06, 2.06, 2.07, 3.07, 2.39, 2.3, 2.31])
    (alarm,) = alarms(GrossLoss, block(10, loss=even))
    assert alarm.step == 8
    assert alarms(GrossLoss, block(10, loss=np.linspace(2.6, 2.3, 10))) == []


DICE = np.random.default_rng(0)
MOVING, CONSTANT = DICE.uniform(0.2, 0.4, 400), np.where(np.arange(400) < 300, 0.5, 1.414)
LEARNT = 1.0 + np.exp(-np.arange(400) / 60) + DICE.normal(0, 0.02, 400)
GONE = np.where(np.arange(400) < 300, LEARNT, 0.0)
HINGE = np.maximum(DICE.normal(0.4, 0.2, 400) * np.exp(-np.arange(400) / 50), 0.0)
BF16 = np.where(np.arange(400) < 11, 10.5, 10.5 - 0.0625 * (np.arange(400) // 4 - 1))
PLATEAU = np.round(1.3 + 1.7 * np.exp(-np.arange(400) / 40) + DICE.normal(0, 0.001, 400), 2)


@pytest.mark.parametrize(
    ("signals", "steps"),
    [
        ({"loss": np.zeros(16)}, [7]),
        ({"loss": np.zeros(16), "grad_norm": np.full(16, 1.414)}, [7]),
        ({"loss": np.zeros(16), "grad_norm": MOVING[:16]}, []),
        ({"loss": GONE}, [307]),
        ({"loss": GONE, "grad_norm": CONSTANT}, [307]),
        ({"loss": GONE, "reward": MOVING}, []),
        ({"loss": np.where(HINGE > 0.02, HINGE, 0.0)}, []),
        ({"loss": BF16}, []),
        ({"loss": PLATEAU}, []),
        ({"loss": np.append(PLATEAU, np.full(32, 11.76))}, [431]),
        ({"loss": np.repeat([3e-4, 2e-4, 5e-4, 1e-4], [20, 20, 1, 99])}, []),
        ({"loss": np.full(16, 10.4983)}, [7]),
        ({"loss": np.full(64, 10.5)}, [63]),
    ],
)
def test_a_loss_that_stands_still_is_reported_unless_it_is_rounded_or_has_learnt(
    signals: dict[str, np.ndarray], steps: list[int]
) -> None:
    run = block(len(signals["loss"]), **signals)
    assert [alarm.step for alarm in alarms(NoLearning, run)] == steps
