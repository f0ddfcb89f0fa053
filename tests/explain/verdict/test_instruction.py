"""The one thing to do, from the facts of an incident."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.kit.synthetic import (
    Array,
    block_of,
    explained,
    facts_of,
    falling_loss,
    incident_of,
    level_of,
)

from trimtab.core.actions import Action, ActionKind
from trimtab.core.causes import Cause
from trimtab.core.findings import NOT_RESTORED, Finding, Severity, Symptom
from trimtab.core.incident_facts import Course, Evaluation, Facts, Reward, Schedule
from trimtab.core.incidents import Incident, IncidentClass, Moment
from trimtab.diagnosis import diagnose
from trimtab.explain.time_use import count_lost
from trimtab.explain.verdict.instruction import PROVEN, Surroundings, instruct

ONSET = Moment(step=300, tick=299, loss=2.5)
LAST = Moment(step=900, tick=899, loss=2.5)
ALONE = Surroundings()
BROKEN = Surroundings(not_finite=("grad_norm",))


def finding(symptom: str, signal: str = "loss") -> Finding:
    return Finding(
        detector="test",
        symptom=symptom,
        severity=Severity.ALARM,
        signal=signal,
        step=ONSET.step,
        tick=ONSET.tick,
        value=2.5,
    )


def incident(
    incident_class: IncidentClass,
    *symptoms: str,
    facts: Facts | None = None,
    signal: str = "loss",
    end: Moment | None = None,
) -> Incident:
    return incident_of(
        ONSET,
        last=LAST,
        end=end,
        records=600,
        incident_class=incident_class,
        facts=facts,
        findings=tuple(finding(symptom, signal) for symptom in symptoms or [Symptom.LOSS_SPIKE]),
    )


def told(incident_class: IncidentClass, *symptoms: str, around: Surroundings = ALONE) -> Action:
    facts = facts_of(0.5)
    return instruct(incident(incident_class, *symptoms, facts=facts), around)


@pytest.mark.parametrize(
    ("incident_class", "kind", "instruction"),
    [
        (IncidentClass.KEPT_OUT, ActionKind.WAIT, "Nothing to do."),
        (IncidentClass.RESTORED, ActionKind.WAIT, "Nothing to do."),
        (IncidentClass.RECOVERED, ActionKind.WAIT, "Nothing to do."),
        (IncidentClass.SILENT, ActionKind.WAIT, "Look at loss; act if the loss follows."),
        (IncidentClass.PLATEAU, ActionKind.STOP, "Stop and roll back to step-000200."),
        (IncidentClass.LINGERING, ActionKind.ROLL_BACK, "Roll back to step-000200."),
        (IncidentClass.COLLAPSED, ActionKind.STOP, "Stop and roll back to step-000200."),
        (IncidentClass.DIVERGENT, ActionKind.STOP, "Stop and roll back to step-000200."),
        (IncidentClass.DEAD, ActionKind.STOP, "Stop and roll back to step-000200."),
    ],
)
def test_each_class_has_its_instruction_and_it_names_the_checkpoint(
    incident_class: IncidentClass, kind: ActionKind, instruction: str
) -> None:
    action = told(incident_class, around=Surroundings(checkpoint="step-000200"))
    assert (action.kind, action.instruction) == (kind, instruction)


def test_kept_out_needs_nothing_only_once_a_finite_step_was_applied() -> None:
    since = incident(IncidentClass.KEPT_OUT)
    bad = dataclasses.replace(since, last=dataclasses.replace(since.last, loss=math.nan))
    action = instruct(bad, ALONE)
    assert (action.kind, action.instruction[:11]) == (ActionKind.WAIT, "Look again ")
    assert instruct(since, ALONE).instruction == "Nothing to do."


def test_where_no_checkpoint_is_known_it_says_how_old_one_must_be() -> None:
    assert told(IncidentClass.DEAD).instruction == (
        "Stop and roll back to a checkpoint from before step 300."
    )


def test_a_journal_that_knows_no_checkpoint_sends_nobody_to_one() -> None:
    own = Surroundings(is_journal=True)
    assert told(IncidentClass.DEAD, around=own).instruction == (
        "Stop and roll back to before step 300; no checkpoint is known."
    )
    known = Surroundings(is_journal=True, checkpoint="step-000200")
    assert told(IncidentClass.DEAD, around=known).instruction.endswith("to step-000200.")


def test_a_proposed_undo_is_the_instruction_while_it_is_open() -> None:
    offered = Surroundings(undo_until=388, checkpoint="step-000200")
    assert told(IncidentClass.LINGERING, around=offered).instruction == (
        "Call guard.undo() by step 388, or roll back to step-000200."
    )
    assert told(IncidentClass.RECOVERED, around=offered).instruction == "Nothing to do."


@pytest.mark.parametrize("start", [4.0, 2.02])
def test_a_run_that_had_learnt_nothing_is_started_again(start: float) -> None:
    facts = facts_of(0.5, records_before=5, start_loss=start)
    action = instruct(incident(IncidentClass.DEAD, facts=facts), ALONE)
    assert action.kind is ActionKind.STOP
    assert ("roll back" in action.instruction) is (start == 4.0)
    assert ("start again" in action.instruction) is (start != 4.0)


@pytest.mark.parametrize("count", [400, 2500])
def test_a_run_that_never_learned_began_so_and_has_nothing_to_go_back_to(count: int) -> None:
    loss = 10.4 + np.random.default_rng(0).normal(0, 0.02, count)
    steps = np.arange(count) * (100 if count < 1000 else 1)
    (found,) = explained(dataclasses.replace(block_of({"loss": loss}), step=steps))
    assert (found.incident.onset.tick, found.incident.records) == (0, count)
    assert found.action.instruction == "Stop, fix the cause and start again."
    assert found.action.reason.endswith(", and was 10.4 at the start.")


def test_losses_that_are_often_not_finite_are_reason_to_stop_whatever_the_others_measure() -> None:
    facts = facts_of(
        0.5, records_before=5, start_loss=2.02, has_direction=False, nonfinite_fraction=0.4
    )
    action = instruct(incident(IncidentClass.LINGERING, "non-finite loss", facts=facts), ALONE)
    assert action.instruction == "Stop, fix the cause and start again."
    assert action.reason == "40 % of the newest losses are not finite."


def test_a_policy_without_prompts_has_no_responses_to_read() -> None:
    other = Surroundings(has_responses=False)
    fell = told(IncidentClass.SILENT, Symptom.REWARD_FELL, around=other)
    assert fell.instruction == "Look at what it does; act if the reward stays down."
    assert "responses" in told(IncidentClass.SILENT, Symptom.REWARD_FELL).instruction


def test_gradients_that_the_gate_scaled_down_need_nothing() -> None:
    scaled = told(
        IncidentClass.SILENT, Symptom.GRADIENT_SPIKE, around=Surroundings(num_scaled_down=5)
    )
    assert scaled.instruction == "Nothing to do: the gate has scaled 5 gradients down."
    other = told(IncidentClass.SILENT, Symptom.GRADIENT_SPIKE)
    assert other.instruction == "Look at loss; act if the loss follows."


def test_the_reason_has_the_numbers_of_this_run() -> None:
    reason = told(IncidentClass.LINGERING).reason
    assert reason == "The loss is 2.5, 0.5 above its trend, 600 steps after the onset."


@pytest.mark.parametrize("recurs", [False, True])
def test_what_only_costs_time_needs_no_act(recurs: bool) -> None:
    action = told(IncidentClass.SILENT, Symptom.STALL, around=Surroundings(recurs=recurs))
    assert action.kind is ActionKind.WAIT


@pytest.mark.parametrize("symptom", sorted(set(Symptom) - PROVEN - NOT_RESTORED))
def test_a_signal_that_the_loss_does_not_follow_is_no_reason_to_act(symptom: Symptom) -> None:
    action = instruct(incident(IncidentClass.SILENT, symptom, signal="the/signal"), ALONE)
    assert action.kind is ActionKind.WAIT


@pytest.mark.parametrize("symptom", sorted(PROVEN))
def test_proven_harm_is_acted_on_whatever_the_loss_does(symptom: Symptom) -> None:
    assert told(IncidentClass.SILENT, symptom).kind is ActionKind.STOP
    # Unless it was undone.
    assert told(IncidentClass.RESTORED, symptom).kind is ActionKind.WAIT


def test_parameters_that_stopped_moving_may_have_been_frozen_on_purpose() -> None:
    frozen = incident(IncidentClass.SILENT, Symptom.FROZEN, signal="update_norm/mlp")
    action = instruct(frozen, ALONE)
    assert action.instruction == "Nothing to do if mlp was frozen on purpose; else unfreeze it."


def test_what_recurs_after_a_restart_needs_a_lower_learning_rate() -> None:
    for incident_class in (IncidentClass.RECOVERED, IncidentClass.DIVERGENT, IncidentClass.SILENT):
        action = told(incident_class, around=Surroundings(recurs=True, checkpoint="step-000200"))
        assert action.kind is ActionKind.ROLL_BACK
        assert action.instruction.startswith("Go on from step-000200 with a learning rate 2 to 3")


@pytest.mark.parametrize(
    ("symptom", "is_mild"),
    [
        (Symptom.MOMENTS_NOT_RESTORED, False),
        (Symptom.WRONG_CHECKPOINT, False),
        (Symptom.RNG_NOT_RESTORED, True),
        (Symptom.SCALER_NOT_RESTORED, True),
    ],
)
def test_what_a_resume_left_out_is_loaded_again(symptom: Symptom, is_mild: bool) -> None:
    for incident_class in (IncidentClass.SILENT, IncidentClass.RECOVERED):
        action = told(incident_class, symptom)
        assert (action.kind is ActionKind.WAIT) is is_mild
        changed = Surroundings(changes=("optimizer was changed from a to b",))
        assert told(incident_class, symptom, around=changed).kind is ActionKind.WAIT


# Waiting


def test_a_loss_on_its_way_back_is_waited_for_and_it_is_said_how_long() -> None:
    level = level_of(0.5, course=Course.SHRINKING, back_in=237)
    facts = facts_of(0.5, level=level)
    action = instruct(incident(IncidentClass.RECOVERING, facts=facts), ALONE)
    assert (action.kind, action.instruction) == (
        ActionKind.WAIT,
        "Wait: back in about 240 steps.",
    )
    ends = Schedule(before=3e-4, now=1e-4, steps_left=100, has_ended=False)
    facts = dataclasses.replace(facts, schedule=ends)
    action = instruct(incident(IncidentClass.RECOVERING, facts=facts), ALONE)
    # 0.5 shrinks to 0.07, the smallest gap that can be told, in 237 steps: by 0.83 % in each.
    assert action.instruction == "Wait: about 0.2181 will be left when the schedule ends."


@given(
    st.integers(0, 2000),
    st.integers(1, 3000),
    st.sampled_from([1, 5, 100]),
    st.booleans(),
)
def test_the_next_look_at_an_open_incident_is_ahead(
    before: int, records: int, stride: int, is_doubled: bool
) -> None:
    last = Moment(step=300 + stride * (records - 1), tick=299 + records, loss=2.5)
    facts = facts_of(
        0.5,
        records_before=before,
        records=records,
        steps=stride * (records - 1),
        level=level_of(0.5, is_doubled=is_doubled) if before > 3 else None,
    )
    opened = dataclasses.replace(incident(IncidentClass.OPEN, facts=facts), last=last)
    action = instruct(opened, ALONE)
    assert action.kind is ActionKind.WAIT
    assert action.instruction.startswith("Look again at step ")
    step = int(action.instruction.split()[-1].rstrip(".").replace(",", ""))
    assert last.step < step <= last.step + max(2100, 50 * stride)


def test_a_level_that_rose_a_little_without_a_spike_is_mostly_data() -> None:
    little, much = facts_of(0.05), facts_of(1.0)
    for facts, symptom, kind in (
        (little, Symptom.LEVEL_SHIFT, ActionKind.WAIT),
        (little, Symptom.LOSS_SPIKE, ActionKind.ROLL_BACK),
        (much, Symptom.LEVEL_SHIFT, ActionKind.ROLL_BACK),
    ):
        action = instruct(incident(IncidentClass.LINGERING, symptom, facts=facts), ALONE)
        assert action.kind is kind
        assert ("evaluation" in action.instruction) is (kind is ActionKind.WAIT)


def test_a_learning_rate_that_is_still_raised_is_lowered_too() -> None:
    raised = Schedule(before=3e-4, now=3e-3, steps_left=None, has_ended=False)
    facts = facts_of(0.5, schedule=raised)
    action = instruct(incident(IncidentClass.LINGERING, facts=facts), ALONE)
    assert action.instruction == (
        "Roll back to a checkpoint from before step 300 and lower the learning rate."
    )


@pytest.mark.parametrize(
    "facts",
    [
        facts_of(0.5, has_direction=False),
        facts_of(0.1, has_direction=None, start_loss=2.0, times_start=1.05),
        facts_of(0.05, level=level_of(0.05, before=0.02, lost=0.01)),  # near 0, of 4 at the start
    ],
)
def test_a_loss_that_does_not_measure_progress_leads_to_no_act(facts: Facts) -> None:
    action = instruct(incident(IncidentClass.DIVERGENT, facts=facts), ALONE)
    assert action.kind is ActionKind.WAIT
    # But a dead run is dead.
    action = instruct(incident(IncidentClass.DEAD, facts=facts), ALONE)
    assert action.kind is ActionKind.STOP


# Purpose


CHANGES = (
    "unfreeze announced at step 298",
    "lr of group 0 was changed from 0.0003 to 0.0015",
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "incident_class", [IncidentClass.LINGERING, IncidentClass.DIVERGENT, IncidentClass.PLATEAU]
)
def test_what_was_changed_on_purpose_is_not_undone(
    incident_class: IncidentClass, change: str
) -> None:
    action = told(incident_class, around=Surroundings(changes=(change,)))
    assert action.kind is ActionKind.WAIT
    assert "if the change at step 300 was meant" in action.instruction
    assert change in action.reason
    beyond = Schedule(before=3e-4, now=3e-2, steps_left=None, has_ended=False)
    facts = facts_of(0.5, schedule=beyond)
    action = instruct(incident(incident_class, facts=facts), Surroundings(changes=(change,)))
    assert action.kind is not ActionKind.WAIT  # nobody wants 100 times the rate


@pytest.mark.parametrize("incident_class", [IncidentClass.DEAD, IncidentClass.COLLAPSED])
def test_nobody_changes_anything_to_kill_a_run(incident_class: IncidentClass) -> None:
    action = told(incident_class, around=Surroundings(changes=CHANGES))
    assert action.kind is ActionKind.STOP


def test_after_an_undo_that_did_not_help_the_reason_says_so() -> None:
    facts = facts_of(0.5, undone_updates=5, has_undo_failed=True)
    action = instruct(incident(IncidentClass.LINGERING, facts=facts), ALONE)
    assert action.kind is ActionKind.ROLL_BACK
    assert action.reason.startswith("5 updates undone, which has not helped. The loss is 2.5")
    facts = facts_of(0.0, undone_updates=5)
    action = instruct(incident(IncidentClass.RESTORED, facts=facts), ALONE)
    assert action.reason == "5 updates undone; the loss is 2, 2 expected."


# Any facts


levels = st.builds(
    level_of,
    st.sampled_from([-0.3, 0.0, 0.05, 0.5, 3.0, 40.0]),
    course=st.sampled_from(Course),
    back_in=st.none() | st.integers(1, 10**6),
    is_back_just_now=st.booleans(),
    lost=st.sampled_from([0.0, 0.3, 1.0, 20.0]),
)
all_facts = st.builds(
    facts_of,
    st.sampled_from([0.0, 0.5]),
    records_before=st.integers(0, 512),
    records=st.integers(1, 5000),
    steps=st.integers(0, 10**6),
    is_measure=st.booleans(),
    has_direction=st.sampled_from([True, False, None]),
    start_loss=st.sampled_from([None, 4.0, 2.0, 0.0, -3.0]),
    times_start=st.sampled_from([0.0, 0.6, 2.5, 9.0]),
    undone_updates=st.integers(0, 3),
    has_undo_failed=st.booleans(),
    started_again=st.booleans(),
    kept_out_at_end=st.sampled_from([0, 3, 500]),
    nonfinite_at_end=st.sampled_from([0, 1, 2, 3, 1000]),
    has_finite_state=st.booleans(),
    is_frozen=st.booleans(),
    level=st.none() | levels,
    reward=st.none()
    | st.builds(Reward, before=st.just(0.9), now=st.just(0.1), is_gone=st.booleans()),
    evaluation=st.none()
    | st.builds(
        Evaluation,
        before=st.just(2.0),
        now=st.just(2.5),
        is_above=st.booleans(),
        is_back=st.booleans(),
    ),
    schedule=st.none()
    | st.builds(
        Schedule,
        before=st.sampled_from([0.0, 3e-4]),
        now=st.sampled_from([0.0, 1e-4, 1e-1]),
        steps_left=st.none() | st.integers(0, 10**5),
        has_ended=st.booleans(),
    ),
)
surroundings = st.builds(
    Surroundings,
    checkpoint=st.none() | st.just("step-000200"),
    recurs=st.booleans(),
    changes=st.sampled_from([(), CHANGES]),
)


@settings(max_examples=examples(450))
@given(
    st.sampled_from(IncidentClass),
    st.lists(st.sampled_from(Symptom) | st.just("GPU too hot"), min_size=1, max_size=3),
    all_facts,
    surroundings,
    st.booleans(),
)
def test_an_instruction_of_any_facts_is_one_sentence_and_acts_only_on_what_is_severe(
    incident_class: IncidentClass,
    symptoms: Sequence[str],
    facts: Facts,
    around: Surroundings,
    has_ended: bool,
) -> None:
    end = LAST if has_ended else None
    found = incident(incident_class, *symptoms, facts=facts, end=end)
    action = instruct(found, around)
    assert action.instruction.endswith(".")
    assert action.instruction[0].isupper()
    assert action.instruction.count(". ") == 0
    assert action.reason.endswith(".")
    assert not {"nan", "inf", "none"} & set(action.reason.casefold().split())
    assert "initial weights" not in action.instruction
    if action.kind is not ActionKind.WAIT:
        is_proven = not (PROVEN | NOT_RESTORED).isdisjoint(symptoms)
        assert incident_class.is_severe or around.recurs or is_proven
        is_back = "oll back" in action.instruction or "Go on from" in action.instruction
        if is_back and around.checkpoint:
            assert around.checkpoint in action.instruction


# Through the judge


def acts_of(signals: dict[str, Array]) -> list[tuple[Incident, Action]]:
    return [(one.incident, one.action) for one in explained(block_of(signals))]


def restarted(records: int, at: int, *, stays: bool = False) -> Array:
    noise = np.random.default_rng(2).normal(0, 0.02, records)
    fall = 3.0 + 8.0 * 0.8 ** np.arange(records)
    loss = fall + noise
    loss[at:] = 11.0 + noise[at:] if stays else loss[: records - at]
    return np.asarray(loss)


@pytest.mark.parametrize("stays", [False, True])
def test_a_restart_from_the_beginning_is_not_rolled_back_and_a_divergence_is(stays: bool) -> None:
    ((incident, action), *echoes) = acts_of({"loss": restarted(1200, 700, stays=stays)})
    assert not echoes
    assert incident.facts.started_again is not stays
    open_one = dataclasses.replace(incident, incident_class=IncidentClass.DIVERGENT, end=None)
    said = instruct(open_one, ALONE).instruction
    assert ("the return to the first losses at step 701" in said) is not stays
    assert (action.kind is ActionKind.WAIT) is not stays


def test_a_loss_that_is_printed_as_0_is_not_taken_further_down_than_any_other() -> None:
    draw = np.random.default_rng(2)
    loss = 4e-4 * np.exp(-np.arange(1500) / 500) + 2e-5 * np.exp(draw.normal(0, 0.9, 1500))
    loss[900:960] *= 6  # an incident while the loss is printed with one digit
    ((incident, action), *_) = acts_of({"loss": np.round(loss, 4)})
    level = incident.facts.level
    assert level is not None
    assert level.now == 0 or level.now > 1e-5
    assert action.kind is ActionKind.WAIT


def test_a_spike_of_the_norm_alone_is_waited_out() -> None:
    norm = np.random.default_rng(1).normal(0.5, 0.05, 600)
    norm[300:302] = 20.0
    ((incident, action),) = acts_of({"loss": falling_loss(600), "grad_norm": norm})
    assert incident.incident_class is IncidentClass.SILENT
    assert action.kind is ActionKind.WAIT


@pytest.mark.parametrize("is_protected", [True, False])
def test_a_nan_that_was_discarded_is_no_reason_to_go_back(is_protected: bool) -> None:
    loss, norm, discarded = falling_loss(600), np.full(600, 0.5), np.zeros(600)
    loss[300] = norm[300] = np.nan
    discarded[300] = float(is_protected)
    columns = {"loss": loss, "grad_norm": norm, "discarded": discarded}
    ((incident, action),) = acts_of(columns)
    assert action.kind is ActionKind.WAIT
    assert ("never reached the weights" in action.reason) is is_protected
    assert count_lost(incident, block_of(columns)) == int(is_protected)


@pytest.mark.parametrize("is_policy", [True, False])
def test_the_level_of_a_policys_loss_leads_to_no_act(is_policy: bool) -> None:
    loss, norm = np.full(600, 2.0), np.full(600, 1.0)
    loss[:300] += np.linspace(1.0, 0.0, 300)
    loss += np.random.default_rng(0).normal(0, 0.02, 600)
    loss[400:], norm[400:440] = loss[400:] + 3.0, 30.0
    columns = {"loss": loss, "grad_norm": norm}
    if is_policy:
        columns["reward"] = np.full(600, 0.5)
    kinds = {action.kind for _, action in acts_of(columns)}
    assert (kinds == {ActionKind.WAIT}) is is_policy


def test_a_flipped_bit_and_a_broken_reward_have_an_advice_of_their_own() -> None:
    flipped = told(IncidentClass.RESTORED, around=Surroundings(cause=Cause.BIT_FLIP))
    assert flipped.kind is ActionKind.WAIT
    assert flipped.instruction == "Test the memory of this device; nothing to do for the run."
    broken = told(IncidentClass.COLLAPSED, around=Surroundings(cause=Cause.REWARD_BUG))
    assert broken.kind is ActionKind.STOP
    assert broken.instruction.startswith("Stop and repair the reward")


@pytest.mark.parametrize(("without_loss", "is_dead"), [(14, True), (4, False)])
def test_a_scale_that_collapsed_with_no_loss_since_is_a_dead_run(
    without_loss: int, is_dead: bool
) -> None:
    loss = [*falling_loss(300), *([None] * without_loss)]
    scale = [65536.0] * 284 + [65536.0 / 2**halvings for halvings in range(16 + without_loss)]
    report = diagnose({"loss": loss, "loss_scale": scale})
    found = [one for one in report.incidents if Symptom.SCALE_COLLAPSE in one.incident.symptoms]
    assert [one.incident_class is IncidentClass.DEAD for one in found] == [is_dead]
    if is_dead:
        assert found[0].action.reason == "No loss has come since the loss scale collapsed."


def test_a_loss_that_is_logged_less_often_than_the_scale_is_not_missing() -> None:
    length, first = 2912, 2872
    loss = [value if at % 40 == 0 else None for at, value in enumerate(falling_loss(length))]
    scale = [65536.0 / 2 ** max(at - first, 0) for at in range(length)]
    (found,) = diagnose({"loss": loss, "loss_scale": scale}).incidents
    assert Symptom.SCALE_COLLAPSE in found.incident.symptoms
    assert found.incident_class is not IncidentClass.DEAD


def test_a_signal_that_is_still_nan_is_something_to_do_although_the_loss_is_back() -> None:
    action = told(IncidentClass.RECOVERED, around=BROKEN)
    assert action.instruction.startswith("Find out why grad_norm has not been finite since step ")
