"""Trimtab's advice."""

import dataclasses
import math

import numpy as np
import pytest
from tests.kit.synthetic import block_of, diagnosis_of, falling_loss

from trimtab.core.actions import ActionKind
from trimtab.core.causes import Cause, Hypothesis, Standing
from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.decide.advice import advise
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.time_use import count_lost
from trimtab.judge import Judge


@pytest.mark.parametrize("recurs", [False, True])
def test_what_only_costs_time_needs_no_rollback(recurs: bool) -> None:
    assert advise(diagnosis_of(Symptom.STALL), recurs=recurs).kind is ActionKind.WAIT


def test_what_affects_the_weights_is_rolled_back() -> None:
    action = advise(diagnosis_of(Symptom.SCALE_COLLAPSE), recurs=False)
    assert action.kind is ActionKind.ROLL_BACK
    assert "300" in action.instruction


def test_what_recurs_needs_a_lower_learning_rate() -> None:
    action = advise(diagnosis_of(Symptom.NORM_DRIFT), recurs=True)
    assert action.kind is ActionKind.LOWER_LR


def test_a_silent_spike_that_passed_is_waited_out_and_a_silent_fault_that_stays_is_not() -> None:
    norm = np.random.default_rng(1).normal(0.5, 0.05, 600)
    norm[300:302] = 20.0
    block = block_of({"loss": falling_loss(600), "grad_norm": norm})
    judge = Judge()
    judge.update(block)
    (incident,) = judge.incidents
    assert incident.incident_class is IncidentClass.SILENT
    assert judge.explain(incident, block).action.kind is ActionKind.WAIT

    finding = dataclasses.replace(incident.findings[0], symptom=Symptom.SCALE_COLLAPSE)
    stays = dataclasses.replace(incident, findings=(finding,))
    assert judge.explain(stays, block).action.kind is ActionKind.ROLL_BACK


@pytest.mark.parametrize(
    "symptom", [Symptom.NORM_DRIFT, Symptom.ACTIVATION_JUMP, Symptom.LARGE_LOGITS]
)
def test_one_signal_alone_that_the_loss_does_not_follow_is_a_note_to_a_human(
    symptom: Symptom,
) -> None:
    action = advise(diagnosis_of(symptom), recurs=False)
    assert action.kind is ActionKind.WAIT
    assert "look at" in action.instruction


def silent(*findings: tuple[Symptom, str]) -> Diagnosis:
    diagnosis = diagnosis_of(Symptom.GRADIENT_SPIKE)
    template = diagnosis.incident.findings[0]
    found = tuple(
        dataclasses.replace(template, symptom=symptom, signal=signal)
        for symptom, signal in findings
    )
    incident = dataclasses.replace(diagnosis.incident, findings=found)
    return dataclasses.replace(diagnosis, incident=incident)


def test_parameters_that_stopped_moving_may_have_been_frozen_on_purpose() -> None:
    part = silent((Symptom.FROZEN, "update_norm/mlp"), (Symptom.FROZEN, "grad_norm/mlp"))
    assert advise(part, recurs=False).kind is ActionKind.WAIT
    with_loss = silent((Symptom.FROZEN, "update_norm/mlp"), (Symptom.STATE_RESET, "adam_v_norm"))
    whole = silent((Symptom.FROZEN, "update_norm"))
    for diagnosis in (with_loss, whole):
        assert advise(diagnosis, recurs=False).kind is ActionKind.ROLL_BACK


def test_large_gradients_and_updates_alone_are_never_rolled_back_while_the_loss_is_unharmed() -> (
    None
):
    spikes = silent(
        (Symptom.GRADIENT_SPIKE, "grad_norm"),
        (Symptom.GRADIENT_SPIKE, "adam_v_norm/mlp"),
        (Symptom.UPDATE_SPIKE, "update_per_lr"),
    )
    assert spikes.incident.end is None  # still open
    action = advise(spikes, recurs=False)
    assert action.kind is ActionKind.WAIT
    assert "batch of step 300" in action.instruction

    device = dataclasses.replace(spikes, cause=Cause.BAD_DEVICE)
    action = advise(device, recurs=False)
    assert action.kind is ActionKind.WAIT
    assert "apply the fix" in action.instruction


def test_one_bad_batch_is_skipped_and_rolled_back_only_if_the_loss_stays_up() -> None:
    moved = silent(
        (Symptom.UPDATE_SPIKE, "update_per_lr"), (Symptom.NORM_DRIFT, "param_norm/attention")
    )
    by_batch = dataclasses.replace(moved, cause=Cause.RARE_TOKENS)
    assert advise(by_batch, recurs=False).kind is ActionKind.WAIT
    assert advise(moved, recurs=False).kind is ActionKind.ROLL_BACK

    up = dataclasses.replace(
        by_batch.incident,
        incident_class=IncidentClass.LINGERING,
        baseline_mean=2.0,
        baseline_deviation=0.1,
        new_level=2.5,
    )
    stays = dataclasses.replace(by_batch, incident=up, incident_class=IncidentClass.LINGERING)
    assert advise(stays, recurs=False).kind is ActionKind.ROLL_BACK


def test_a_hard_fact_is_acted_on_whatever_the_batch_was() -> None:
    lost = silent((Symptom.GRADIENT_SPIKE, "grad_norm"), (Symptom.SCALE_COLLAPSE, "loss_scale"))
    by_batch = dataclasses.replace(lost, cause=Cause.RARE_TOKENS)
    assert advise(by_batch, recurs=False).kind is ActionKind.ROLL_BACK


def restarted(records: int, at: int, *, stays: bool = False) -> np.ndarray:
    noise = np.random.default_rng(2).normal(0, 0.02, records)
    fall = 3.0 + 8.0 * 0.8 ** np.arange(records)
    loss = fall + noise
    loss[at:] = 11.0 + noise[at:] if stays else loss[: records - at]
    return loss


def test_a_restart_from_the_beginning_is_not_rolled_back_and_a_divergence_is() -> None:
    for stays, kind in ((False, ActionKind.WAIT), (True, ActionKind.ROLL_BACK)):
        loss = restarted(1200, 700, stays=stays)
        block = block_of({"loss": loss})
        judge = Judge()
        judge.update(block)
        judge.finish()
        (incident, *echoes) = judge.incidents
        assert not echoes
        assert incident.started_again is not stays
        assert judge.explain(incident, block).action.kind is kind


def test_an_incident_of_the_first_step_does_not_ask_for_an_older_checkpoint() -> None:
    diagnosis = diagnosis_of(Symptom.SCALE_COLLAPSE)
    onset = dataclasses.replace(diagnosis.incident.onset, step=1)
    first = dataclasses.replace(diagnosis.incident, onset=onset)
    action = advise(dataclasses.replace(diagnosis, incident=first), recurs=False)
    assert "start again from the initial weights" in action.instruction


@pytest.mark.parametrize("others", [(), ((Symptom.UPDATE_SHIFT, "update_norm"),)])
def test_an_optimizer_state_that_was_reset_is_no_reason_to_go_back_if_the_loss_does_not_follow(
    others: tuple[tuple[Symptom, str], ...],
) -> None:
    reset = silent((Symptom.STATE_RESET, "adam_step"), *others)
    action = advise(reset, recurs=False)
    assert action.kind is ActionKind.WAIT
    assert "on purpose" in action.instruction
    up = dataclasses.replace(reset.incident, incident_class=IncidentClass.DIVERGENT)
    moved = dataclasses.replace(reset, incident=up, incident_class=IncidentClass.DIVERGENT)
    assert advise(moved, recurs=False).kind is not ActionKind.WAIT


def test_a_repeated_batch_that_the_loss_does_not_follow_is_no_reason_to_go_back() -> None:
    repeated = silent((Symptom.REPEATED_BATCH, "fingerprint"))
    for cause in (None, Cause.DUPLICATE_BATCH):
        action = advise(dataclasses.replace(repeated, cause=cause), recurs=False)
        assert action.kind is ActionKind.WAIT


@pytest.mark.parametrize(
    ("helped", "named", "is_over", "continues"),
    [
        (True, IncidentClass.RECOVERABLE, True, True),
        (None, IncidentClass.SILENT, False, True),
        (None, None, False, True),
        (False, None, False, False),
        (False, IncidentClass.DIVERGENT, False, False),
        (True, IncidentClass.DIVERGENT, False, False),
        (None, IncidentClass.LINGERING, True, False),
        (False, IncidentClass.RECOVERABLE, True, True),  # back at last, if not by the undo
    ],
)
def test_after_an_undo_the_run_goes_on_only_if_the_loss_is_back(
    helped: bool | None, named: IncidentClass | None, is_over: bool, continues: bool
) -> None:
    diagnosis = diagnosis_of(Symptom.HARMED_STATE)
    cost = dataclasses.replace(diagnosis.cost, undone=5, undo_helped=helped)
    end = diagnosis.incident.last if is_over else None
    incident = dataclasses.replace(diagnosis.incident, incident_class=named, end=end)
    diagnosis = dataclasses.replace(diagnosis, incident=incident, incident_class=named, cost=cost)
    action = advise(diagnosis, recurs=False)
    assert (action.kind is ActionKind.WAIT) is continues
    assert ("Continue" in action.instruction) is continues


def test_weights_are_lost_only_where_no_loss_is_finite_any_more() -> None:
    for last, is_lost in ((math.nan, True), (9.0, False)):
        diagnosis = diagnosis_of(Symptom.NONFINITE_LOSS)
        moment = dataclasses.replace(diagnosis.incident.last, loss=last)
        incident = dataclasses.replace(
            diagnosis.incident, incident_class=IncidentClass.DIVERGENT, last=moment
        )
        diagnosis = dataclasses.replace(
            diagnosis, incident=incident, incident_class=IncidentClass.DIVERGENT
        )
        assert ("weights are lost" in advise(diagnosis, recurs=False).reason) is is_lost


@pytest.mark.parametrize("is_protected", [True, False])
def test_a_nan_that_was_discarded_is_no_reason_to_go_back(is_protected: bool) -> None:
    loss, norm, discarded = falling_loss(600), np.full(600, 0.5), np.zeros(600)
    loss[300] = norm[300] = np.nan
    discarded[300] = float(is_protected)
    block = block_of({"loss": loss, "grad_norm": norm, "discarded": discarded})
    judge = Judge()
    judge.update(block)
    (incident,) = judge.incidents
    explained = judge.explain(incident, block)
    assert explained.action.kind is ActionKind.WAIT
    assert ("never reached the weights" in explained.action.reason) is is_protected
    assert count_lost(incident, block) == int(is_protected)


@pytest.mark.parametrize(
    ("cause", "standing", "skips"),
    [
        (Cause.LR_DISCONTINUITY, Standing.SUPPORTED, False),
        (Cause.FP16_OVERFLOW, Standing.SUPPORTED, False),
        (Cause.RARE_TOKENS, Standing.SUPPORTED, True),
    ],
)
def test_batches_are_skipped_only_where_that_can_help(
    cause: Cause, standing: Standing, skips: bool
) -> None:
    diagnosis = diagnosis_of(Symptom.LOSS_SPIKE)
    hypothesis = Hypothesis(cause=cause, statement="", standing=standing, evidence=())
    incident = dataclasses.replace(
        diagnosis.incident, incident_class=IncidentClass.DIVERGENT, outlook=None
    )
    diagnosis = dataclasses.replace(
        diagnosis,
        incident=incident,
        incident_class=IncidentClass.DIVERGENT,
        cause=cause,
        hypotheses=(hypothesis,),
    )
    action = advise(diagnosis, recurs=False)
    assert action.kind is ActionKind.ROLL_BACK
    assert ("skip" in action.instruction) is skips
    assert ("Apply the fix" in action.instruction) is not skips


@pytest.mark.parametrize("is_policy", [True, False])
def test_the_level_of_a_policys_loss_leads_to_no_act(is_policy: bool) -> None:
    loss, norm = np.full(600, 2.0), np.full(600, 1.0)
    loss[:300] += np.linspace(1.0, 0.0, 300)
    loss += np.random.default_rng(0).normal(0, 0.02, 600)
    loss[400:], norm[400:440] = loss[400:] + 3.0, 30.0
    columns = {"loss": loss, "grad_norm": norm}
    if is_policy:
        columns["reward"] = np.full(600, 0.5)
    run = block_of(columns)
    judge = Judge()
    judge.update(run)
    judge.finish()
    actions = [judge.explain(incident, run).action for incident in judge.incidents]
    assert any(action and action.kind is not ActionKind.WAIT for action in actions) != is_policy
