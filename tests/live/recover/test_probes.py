"""Probes: a batch that an older state scores now and then: bits, cost, what is proposed."""

import math
from pathlib import Path
from unittest import mock

import pytest
import torch
from tests.live.recover.test_trial import AT, Run, bits_without_trials, train

from trimtab.core.events import ROLLBACK_PROPOSED, TRIAL, UNDO
from trimtab.live.recover.probes import LEAST_USUAL, ProbeSchedule
from trimtab.live.recover.trial_rule import TrialSchedule


@pytest.mark.parametrize("every", [10, 25])
def test_probes_leave_every_bit_and_cost_no_more_than_they_may(every: int, tmp_path: Path) -> None:
    run = train(tmp_path, "auto", steps=90, trial_every=every)
    assert run.bits == bits_without_trials(2, 90)
    micro_batches, states = 2, 2
    assert 2 * states * micro_batches <= run.calls <= 90 / every * states * micro_batches


def worse(run: Run, step: int) -> None:
    """Move the weights by less than the noise of the loss shows, past what torch counts."""
    run.rate *= 0.03 if step >= AT else 1
    if step == 2 * AT:
        dice = torch.Generator().manual_seed(1)
        for parameter in run.model.parameters():
            values = parameter.detach()
            noise = 0.45 * values.std() * torch.randn(values.shape, generator=dice)
            values.numpy()[...] += noise.numpy() if values.ndim > 1 else 0


def test_harm_under_the_noise_of_the_loss_is_proposed_and_never_done(tmp_path: Path) -> None:
    with mock.patch.object(TrialSchedule, "opens", return_value=False):  # the loss is silent
        run = train(tmp_path, "auto", worse, steps=210, trial_every=10)
    assert run.events(UNDO) == []
    (asked,) = run.events(ROLLBACK_PROPOSED)
    assert asked.facts["gain"] > 0
    assert 2 * AT < asked.step < 2 * AT + 60
    assert asked.step - asked.facts["updates_lost"] <= 2 * AT


def test_a_healthy_run_proposes_nothing(tmp_path: Path) -> None:
    run = train(tmp_path, "ask", steps=210, trial_every=10)
    assert run.events(ROLLBACK_PROPOSED, UNDO) == []
    assert len(run.events(TRIAL)) <= 2


def test_a_gap_is_unusual_beside_those_of_the_run() -> None:
    probes = ProbeSchedule(50)
    assert not probes.is_due(49)
    assert probes.is_due(50)
    for number in range(LEAST_USUAL):
        assert probes.limit == math.inf
        probes.gaps.append(-0.1 + 0.01 * (number % 3))
    assert probes.limit == 0  # an older state that leads at all is unusual in a run that learns
    for number in range(16):
        probes.gaps.append(0.01 * (number % 3))
    assert 0.02 < probes.limit < 0.1
    probes.end(60, 9)
    assert not probes.is_due(60 + 9 * 50 - 1)  # what was scored has to be paid for
    assert probes.is_due(60 + 9 * 50)
    assert not ProbeSchedule(0).is_due(10**6)
