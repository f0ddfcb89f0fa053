"""Whether a loss measures progress, by the record of the run itself."""

import json

import numpy as np
import pytest
from tests.detect.feeding import alarms, block
from tests.kit.synthetic import explained

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, FloatArray
from trimtab.core.findings import Symptom
from trimtab.detect.loss.loss_detectors import LossDetectors
from trimtab.detect.loss.meaning import LossMeaning
from trimtab.detect.state.hard_limits import FrozenUpdates

LENGTH = 900
END = LENGTH - 1


def noise(seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(LENGTH)


def density(seed: int = 0) -> FloatArray:
    """The likelihood of a density: from 1.4 to -1.6, for good reasons."""
    return -1.6 + 3 * np.exp(-np.arange(LENGTH) / 150) + 0.05 * noise(seed)


def fine_tuning(seed: int = 0) -> FloatArray:
    return 1.8 + 0.1 * np.exp(-np.arange(LENGTH) / 150) + 0.02 * noise(seed)


def policy(seed: int = 0) -> FloatArray:
    """The loss of a policy: around 0."""
    return 0.05 * noise(seed)


def adversary(seed: int = 0) -> FloatArray:
    """A loss that is never negative, and goes up and down."""
    return 1.4 + 0.3 * np.sin(np.arange(LENGTH) / 60 + seed) + 0.02 * noise(seed)


def meaning(loss: FloatArray, *, first_step: int = 0, objective: str = "auto") -> LossMeaning:
    """What is known of a loss; the same at once, record by record, and saved on the way."""
    run = block(LENGTH, loss=loss, step=first_step + np.arange(LENGTH))
    whole, single = LossMeaning(objective), LossMeaning(objective)
    whole.observe(run)
    for piece in run.cut(1):
        single.observe(piece)
        state = json.loads(json.dumps(single.state_dict()))
        single = LossMeaning(objective)
        single.load_state_dict(state)
    assert single.state_dict() == whole.state_dict()
    return whole


@pytest.mark.parametrize("seed", range(3))
def test_what_falls_measures_progress_also_under_zero_and_by_a_twentieth(seed: int) -> None:
    for loss in (density(seed), fine_tuning(seed)):
        known = meaning(loss)
        assert known.has_direction(END)
        assert not known.is_surrogate(END)


@pytest.mark.parametrize("seed", range(3))
def test_what_goes_up_and_down_as_much_does_not(seed: int) -> None:
    assert meaning(policy(seed)).is_surrogate(END)
    wanders = meaning(adversary(seed))
    assert wanders.has_direction(END) is False
    assert not wanders.is_surrogate(END)


def test_a_log_that_begins_late_does_not_show_what_fell_before() -> None:
    flat = 2.0 + 0.02 * noise()
    assert meaning(flat).has_direction(END) is False
    assert meaning(flat, first_step=40_000).has_direction(END)


def test_what_the_user_says_counts() -> None:
    assert meaning(policy(), objective="measure").has_direction(END)
    assert meaning(density(), objective="surrogate").is_surrogate(END)


def test_a_rise_is_judged_by_what_was_known_before_it() -> None:
    loss = density()
    loss[600:] += np.linspace(0, 30, LENGTH - 600)
    known = meaning(loss)
    assert known.has_direction(600)
    assert known.has_direction(END) is False


def advice(run: Block) -> list[ActionKind]:
    return [diagnosis.action.kind for diagnosis in explained(run)]


def test_a_likelihood_that_diverges_under_zero_is_an_alarm_and_a_policy_is_not() -> None:
    rise = np.where(np.arange(LENGTH) > 600, 1.2, 0.0)
    run = block(LENGTH, loss=density() + rise)
    assert Symptom.LOSS_SPIKE in {alarm.symptom for alarm in alarms(LossDetectors, run)}
    assert ActionKind.ROLL_BACK in advice(run)
    assert alarms(LossDetectors, block(LENGTH, loss=policy() + rise)) == []


def test_a_loss_that_wandered_never_leads_to_an_act() -> None:
    rise = np.where(np.arange(LENGTH) > 600, 4.0, 0.0)
    said = advice(block(LENGTH, loss=adversary() + rise))
    assert said
    assert set(said) == {ActionKind.WAIT}


def test_a_policy_that_died_is_found_and_one_that_has_solved_its_tasks_is_not() -> None:
    loss, norm = policy(), np.exp(0.1 * noise(1))
    loss[400:], norm[400:] = 0.0, 0.0
    (alarm,) = alarms(FrozenUpdates, block(LENGTH, loss=loss, grad_norm=norm))
    assert (alarm.symptom, alarm.step) == (Symptom.FROZEN, 415)
    loss[350], norm[350] = 0.0, 0.0  # first one batch without a gradient, then all
    assert alarms(FrozenUpdates, block(LENGTH, loss=loss, grad_norm=norm)) == []
