"""Batches without a target, and a held-out loss that rises while the loss in training falls."""

import numpy as np
import pytest
from tests.detect.feeding import alarms, block, findings

from trimtab.core.findings import Severity, Symptom
from trimtab.detect.run.fine_tuning import LITTLE, MIN_EMPTY, MIN_QUIET, HeldOut, NoTargets

LENGTH, EVERY = 120, 10


def evaluated(*losses: float, fall: float = 1.0) -> list[tuple[int, str, Severity]]:
    """What is found where the loss in training falls and these are the evaluations."""
    held_out = np.full(LENGTH, np.nan)
    held_out[EVERY - 1 :: EVERY][: len(losses)] = losses
    noise = np.random.default_rng(0).normal(0, 0.02, LENGTH)
    loss = 2.0 - fall * np.linspace(0, 1, LENGTH) + noise
    found = findings(HeldOut, block(LENGTH, loss=loss, eval_loss=held_out))
    return [(one.step, one.symptom, one.severity) for one in found]


def test_a_held_out_loss_that_falls_or_stays_is_no_finding() -> None:
    assert evaluated(*np.linspace(2.0, 1.2, 12)) == []
    assert evaluated(*(1.5 + 0.4 * LITTLE * (-1.0) ** np.arange(12))) == []
    assert evaluated(1.5, 1.4, 3.0, 1.4, 1.3) == []  # one evaluation alone


def test_a_little_overfitting_is_a_note() -> None:
    found = evaluated(2.0, 1.6, 1.4, 1.45, 1.5, 1.52, 1.45)
    assert [severity for *_, severity in found] == [Severity.INFO]


def test_a_held_out_loss_that_stays_above_its_best_is_an_alarm_at_the_third_evaluation() -> None:
    found = evaluated(2.0, 1.6, 1.4, 1.45, 1.5, 1.52, 1.55, 1.6, 1.7)
    assert [severity for *_, severity in found] == [Severity.INFO, Severity.ALARM]
    assert found[-1][0] == 7 * EVERY - 1
    noisy = evaluated(2.0, 1.6, 1.4, 2.1, 1.3, 1.6, 1.9, 1.7, 1.2)  # it came back from such before
    assert Severity.ALARM not in [severity for *_, severity in noisy]


def test_noise_of_the_evaluations_is_no_overfitting() -> None:
    noise = np.random.default_rng(3).normal(scale=0.04, size=(20, 12))
    alarmed = sum(any(one[2] is Severity.ALARM for one in evaluated(*(1 + row))) for row in noise)
    assert alarmed <= 3


def test_a_model_that_gets_worse_than_it_was_is_an_alarm_that_names_the_best_weights() -> None:
    held_out = np.full(LENGTH, np.nan)
    held_out[EVERY - 1 :: EVERY][:6] = [1.5, 1.4, 1.6, 1.7, 1.8, 1.9]
    run = block(LENGTH, loss=np.linspace(2, 1, LENGTH), eval_loss=held_out)
    (alarm,) = alarms(HeldOut, run)
    assert (alarm.symptom, alarm.step) == (Symptom.HELD_OUT_ROSE, 49)
    assert alarm.explanation is not None
    assert "step 19" in alarm.explanation.remedy


def test_a_run_whose_own_loss_rises_is_not_overfitting() -> None:
    assert evaluated(1.5, 1.4, 1.6, 1.8, 2.0, 2.2, fall=-1.0) == []


def test_a_rise_of_both_losses_between_two_evaluations_is_not_overfitting() -> None:
    loss = np.append(np.linspace(2.4, 1.6, 24), [8.3, 8.4, 8.4, 8.5])
    held_out = np.append(np.linspace(2.45, 1.7, 24), [8.4, 8.5, 8.5, 8.6])
    run = block(len(loss), loss=loss, eval_loss=held_out)
    assert findings(HeldOut, run) == []


@pytest.mark.parametrize(
    ("signals", "after"),
    [
        ({"tokens": 0.0}, [MIN_EMPTY]),
        ({"tokens": 0.0, "loss": 0.0, "grad_norm": 0.0}, [MIN_EMPTY]),
        ({"loss": 0.0, "grad_norm": 0.0}, [MIN_QUIET]),  # or a policy without a reward so far
        ({"loss": 0.0, "grad_norm": np.inf}, []),
        ({"loss": 0.0, "grad_norm": 0.3}, []),
        ({"loss": 0.0, "grad_norm": 0.0, "reward": 0.5}, []),  # as TRL's GRPO begins
        ({"loss": 0.0}, []),
    ],
)
def test_batches_without_a_target_are_found(signals: dict[str, float], after: list[int]) -> None:
    found = alarms(NoTargets, block(20, **signals))
    assert [one.step + 1 for one in found] == after


def test_a_run_that_has_learnt_everything_has_targets() -> None:
    loss = np.maximum(1.0 - np.arange(40) / 20, 0.0)
    assert findings(NoTargets, block(40, loss=loss, grad_norm=loss)) == []


def test_one_batch_of_prompts_alone_is_no_finding() -> None:
    tokens = np.where(np.arange(40) % 10 < MIN_EMPTY - 1, 0.0, 64.0)
    assert findings(NoTargets, block(40, tokens=tokens, loss=1.0)) == []
