"""The ladder: one remedy for each kind of trouble, by expected cost."""

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples

from trimtab.core.config import LadderConfig
from trimtab.core.findings import Symptom
from trimtab.decide.ladder import DecisionLog, check_step, decide, recompute
from trimtab.decide.readings import Reading, scale_of
from trimtab.decide.situation import (
    ROLLBACKS,
    SKIPPING,
    Act,
    Decision,
    SettingDifference,
    Situation,
)
from trimtab.decide.suspects import SettingsView, find_differences
from trimtab.decide.symptoms import TRAITS, Family

LIMITS = LadderConfig()
HEALTHY = (-0.10, -0.13, -0.09, -0.12)
SLOTS = (100, 140, 160, 180, 200)
DECAY = SettingDifference(name="group 0 weight_decay", before=0.1, after=25.0)


def situation(*symptoms: Symptom, **changes: Any) -> Situation:
    """An incident that began at step 210; the run stands at step 214."""
    known = Situation(
        step=214,
        onset=210,
        waited=2,
        symptoms=symptoms,
        signals=tuple(symptoms),
        certainty=0.95,
        healthy=HEALTHY,
        can_probe=True,
        slots=SLOTS,
        slope=0.0016,
    )
    return dataclasses.replace(known, **changes)


def look(*symptoms: Symptom, **changes: Any) -> Decision:
    return decide(situation(*symptoms, **changes), LIMITS)


def test_every_symptom_of_ours_has_a_family() -> None:
    assert set(TRAITS) == set(Symptom)


def test_a_gradient_spike_alone_does_nothing() -> None:
    found = look(Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE)
    assert found.act is Act.WAIT
    assert found.look_again is None


def test_an_alarm_of_the_loss_waits_eight_steps_and_then_probes() -> None:
    early = look(Symptom.LOSS_SPIKE)
    assert (early.act, early.look_again) == (Act.WAIT, 8)
    assert look(Symptom.LOSS_SPIKE, waited=8, step=220).act is Act.PROBE


def test_three_bad_steps_in_a_row_are_probed_at_once() -> None:
    assert look(Symptom.NONFINITE_LOSS, bad_in_a_row=3).act is Act.PROBE


def test_batches_that_left_the_weights_whole_need_no_rollback() -> None:
    found = look(Symptom.NONFINITE_LOSS, bad_in_a_row=8, probe=-0.14, probe_waited=2)
    assert (found.act, found.look_again) == (Act.WAIT, 32)
    again = look(Symptom.NONFINITE_LOSS, probe=-0.14, probe_waited=2, waited=32, step=244)
    assert again.act is Act.PROBE
    last = look(Symptom.NONFINITE_LOSS, probe=-0.13, probe_waited=32, waited=32, step=244)
    assert (last.act, last.look_again) == (Act.WAIT, None)


@pytest.mark.parametrize("reading", [1.2, 2.1, math.inf, math.nan])
def test_broken_weights_are_restored_without_a_skip(reading: float) -> None:
    found = look(Symptom.LOSS_SPIKE, waited=8, step=220, probe=reading, probe_waited=8)
    assert found.act is Act.RESTORE
    assert (found.chosen.target, found.chosen.skip_from) == (200, None)


def test_hurt_weights_are_restored_and_the_batches_are_skipped() -> None:
    found = look(Symptom.LOSS_SPIKE, waited=8, step=220, probe=0.12, probe_waited=8)
    assert found.act is Act.RESTORE_AND_SKIP
    assert (found.chosen.target, found.chosen.skip_from) == (200, 203)


def test_harm_that_costs_less_than_a_rollback_is_left_alone() -> None:
    # 0.09 nat at 0.004 a step are 19 steps; the snapshot is 20 steps back, and may not help.
    found = look(Symptom.LOSS_SPIKE, waited=8, step=220, probe=-0.02, probe_waited=8, slope=0.004)
    assert found.act is Act.WAIT
    costs = {option.act: option.cost for option in (found.chosen, *found.alternatives)}
    assert costs[Act.WAIT] < costs[Act.RESTORE]


def test_a_rate_that_jumped_is_held_from_before_the_jump() -> None:
    rate = SettingDifference(name="group 0 lr", before=1e-3, after=2e-2)
    found = look(Symptom.LR_JUMP, differences=(rate,))
    assert found.act is Act.RESTORE
    assert found.chosen.holds == (rate,)
    assert found.chosen.target == 200


def test_a_rate_that_rose_a_little_is_held_without_a_rollback() -> None:
    rate = SettingDifference(name="group 0 lr", before=1e-3, after=1.03e-3)
    assert look(Symptom.LR_RISING, differences=(rate,)).act is Act.HOLD


def test_a_rate_that_fell_is_a_schedule() -> None:
    rate = SettingDifference(name="group 0 lr", before=1e-3, after=1e-4)
    assert look(Symptom.LR_JUMP, differences=(rate,)).act is Act.WAIT


def test_a_setting_that_changed_is_put_back_and_held() -> None:
    found = look(Symptom.UPDATE_SHIFT, differences=(DECAY,))
    assert (found.act, found.chosen.holds) == (Act.RESTORE, (DECAY,))
    assert "weight_decay 0.1 -> 25.0" in found.reason


def test_an_announced_change_is_never_held() -> None:
    planned = dataclasses.replace(DECAY, is_announced=True)
    found = look(Symptom.UPDATE_SHIFT, differences=(planned,), certainty=0.3)
    assert found.act is Act.WAIT
    assert not any(option.holds for option in (found.chosen, *found.alternatives))


def test_lost_state_is_restored_unless_the_batch_of_that_step_was_odd() -> None:
    assert look(Symptom.STATE_LOST).act is Act.RESTORE
    assert look(Symptom.STATE_LOST, batch_was_odd=True).act is Act.WAIT


def test_what_comes_again_from_restored_state_is_left_alone_if_the_weights_are_whole() -> None:
    again = {"recurrences": 1, "tried": (Act.RESTORE,), "last_depth": 10}
    assert look(Symptom.STATE_LOST, **again).act is Act.PROBE
    assert look(Symptom.STATE_LOST, probe=-0.1, **again).act is Act.WAIT


def test_what_comes_again_and_hurts_the_weights_stops_the_run() -> None:
    found = look(
        Symptom.NONFINITE_LOSS,
        probe=math.nan,
        recurrences=2,
        tried=(Act.RESTORE, Act.RESTORE),
        last_depth=20,
    )
    assert found.act is Act.STOP
    assert found.exit_code == 76
    assert "came back 2 times" in found.reason


def test_sixteen_of_twenty_steps_without_an_update_roll_back_and_then_stop() -> None:
    stuck = {"bad_recently": 16, "bad_in_a_row": 16, "probe": math.nan}
    first = look(Symptom.OVERFLOWS, **stuck)
    assert first.is_rollback
    tried = (Act.RESTORE, Act.RESTORE_AND_SKIP)
    assert look(Symptom.OVERFLOWS, recurrences=2, tried=tried, **stuck).act is Act.STOP


def test_a_run_that_is_stuck_goes_back_also_where_the_probe_is_healthy() -> None:
    stuck = {"bad_recently": 16, "bad_in_a_row": 16, "probe": -0.12, "waited": 20, "step": 232}
    assert look(Symptom.NONFINITE_GRAD_NORM, **stuck).is_rollback
    again = {"recurrences": 4, "tried": (Act.RESTORE,) * 2 + (Act.RESTORE_AND_SKIP,) * 2}
    assert look(Symptom.NONFINITE_GRAD_NORM, rollbacks=4, **stuck, **again).act is Act.STOP


def test_a_state_of_the_optimizer_that_is_not_finite_is_probed_at_once() -> None:
    assert look(Symptom.NONFINITE_NORM).act is Act.PROBE


@pytest.mark.parametrize("bad", [0, 4], ids=["steps finite", "steps discarded"])
def test_weights_that_are_not_finite_are_restored_at_once_without_a_skip(bad: int) -> None:
    found = {"signals": ("grad_norm", "param_norm"), "bad_recently": bad, "bad_in_a_row": bad}
    assert look(Symptom.NONFINITE_GRAD_NORM, Symptom.NONFINITE_NORM, **found).act is Act.RESTORE


def test_weights_that_are_not_finite_again_after_a_restore_are_probed() -> None:
    again = {"signals": ("param_norm",), "recurrences": 1, "tried": (Act.RESTORE,)}
    assert look(Symptom.NONFINITE_NORM, **again).act is Act.PROBE
    assert look(Symptom.NONFINITE_NORM, probe=-0.12, **again).act is Act.WAIT


def test_a_jump_known_to_the_step_needs_a_margin_of_one() -> None:
    assert situation(Symptom.NORM_DRIFT).margin == 24
    assert situation(Symptom.NORM_DRIFT, is_dated=True).margin == 1


def test_a_wrong_resume_is_relaunched_where_something_relaunches() -> None:
    resumed = {"resumed_at": 208, "slots": (208,), "signals": ("a", "b")}
    assert look(Symptom.STATE_LOST, **resumed).act is Act.WAIT
    found = look(Symptom.STATE_LOST, relaunches_left=1, **resumed)
    assert (found.act, found.exit_code) == (Act.RELAUNCH, 75)
    again = {"tried": (Act.RELAUNCH,), "recurrences": 1}
    assert look(Symptom.STATE_LOST, relaunches_left=1, **again, **resumed).act is not Act.RELAUNCH


def test_harm_that_no_snapshot_is_older_than_is_relaunched_where_something_relaunches() -> None:
    broken = {"probe": 5.0, "probe_waited": 8, "waited": 8, "slots": ()}
    assert look(Symptom.LOSS_SPIKE, **broken).act is Act.STOP
    found = look(Symptom.LOSS_SPIKE, relaunches_left=1, **broken)
    assert (found.act, found.exit_code) == (Act.RELAUNCH, 75)
    healthy = {**broken, "probe": -0.1}
    assert look(Symptom.LOSS_SPIKE, relaunches_left=1, **healthy).act is Act.WAIT
    assert (
        look(Symptom.LOSS_SPIKE, relaunches_left=1, **{**broken, "slots": SLOTS}).act in ROLLBACKS
    )


def test_readings_that_rise_as_the_loss_flattens_are_healthy() -> None:
    rising = (-0.63, -0.55, -0.55, -0.47, -0.36, -0.38)
    mean, sigma = scale_of(rising, 8)
    assert Reading(value=-0.25, mean=mean, sigma=sigma).is_healthy
    steady = (-0.44, -0.55, -0.65, -0.34, -0.43)
    mean, sigma = scale_of(steady, 8)
    assert Reading(value=-0.11, mean=mean, sigma=sigma).shows_forgetting
    assert not Reading(value=-0.2, mean=mean, sigma=sigma).shows_forgetting
    assert Reading(value=math.nan, mean=mean, sigma=sigma).shows_forgetting


def test_harm_that_only_a_probe_has_found_is_expected_to_go_on() -> None:
    found = {"probe": 0.25, "onset": 210, "step": 244, "waited": 34, "probe_waited": 34}
    again = {"recurrences": 1, "tried": (Act.RESTORE_AND_SKIP,), "last_depth": 30}
    first = look(**found, positions=(210, 243))
    assert first.act is Act.RESTORE_AND_SKIP
    assert "data positions 210 to 243" in first.reason
    last = look(**found, **{**again, "recurrences": 2, "tried": (Act.RESTORE_AND_SKIP,) * 2})
    assert last.act is Act.STOP
    assert look(Symptom.LOSS_SPIKE, **found).chosen.cost < first.alternatives[-1].cost


RISE = {"rise": 0.3, "step": 260, "slots": (100, 140, 160, 180, 240)}


def test_known_batches_that_become_worse_by_a_new_source_are_cured_by_leaving_it_out() -> None:
    found = look(source="forum", **RISE | {"rise": 0.06})
    assert found.act is Act.QUARANTINE
    assert found.chosen.target == 180


def test_known_batches_that_become_worse_are_skipped_for_once_and_then_stop_the_run() -> None:
    assert look(**RISE, text_changed=True).act is Act.RESTORE_AND_SKIP
    again = look(
        **RISE,
        text_changed=True,
        recurrences=1,
        tried=(Act.RESTORE_AND_SKIP,),
        last_depth=30,
        positions=(210, 259),
    )
    assert again.act is Act.STOP
    assert "data positions 210 to 259" in again.reason


def test_known_batches_that_become_worse_do_nothing_where_the_data_is_as_before() -> None:
    assert look(**RISE).act is Act.WAIT
    assert look(**RISE | {"rise": 0.06}).act is Act.WAIT
    assert look(**RISE | {"rise": 0.06}, text_changed=True).act is Act.RESTORE_AND_SKIP


def test_a_source_is_left_out_when_skipping_did_not_help() -> None:
    again = {"recurrences": 1, "tried": (Act.RESTORE_AND_SKIP,), "last_depth": 10}
    hurt = {"probe": 0.3, "waited": 8, "probe_waited": 8, "step": 220}
    assert look(Symptom.LOSS_SPIKE, source="web", **hurt, **again).act is Act.QUARANTINE


def test_without_a_probe_a_restore_without_skip_is_the_experiment() -> None:
    found = look(
        Symptom.LOSS_SPIKE, can_probe=False, waited=8, step=220, loss_excess=2.0, loss_noise=0.1
    )
    assert found.act is Act.RESTORE
    back = look(
        Symptom.LOSS_SPIKE, can_probe=False, waited=8, step=220, loss_excess=0.05, loss_noise=0.1
    )
    assert back.act is Act.WAIT


def test_a_check_stays_open_as_long_as_the_fault_took_to_show() -> None:
    assert check_step(onset=210, alarm=213) == 226
    assert check_step(onset=210, alarm=242) == 242


SYMPTOMS = st.lists(st.sampled_from(list(Symptom)), min_size=0, max_size=4, unique=True)
READINGS = st.none() | st.floats(-1, 3) | st.sampled_from([math.nan, math.inf])


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    symptoms = tuple(draw(SYMPTOMS))
    onset = draw(st.integers(0, 5000))
    return Situation(
        step=onset + draw(st.integers(0, 100)),
        onset=onset,
        waited=draw(st.integers(0, 100)),
        symptoms=symptoms,
        signals=tuple(
            draw(st.lists(st.sampled_from(["loss", "lr", "v", "param_norm"]), max_size=3))
        ),
        certainty=draw(st.floats(0, 1)),
        batch_was_odd=draw(st.booleans()),
        bad_in_a_row=draw(st.integers(0, 20)),
        bad_recently=draw(st.integers(0, 20)),
        probe=draw(READINGS),
        rise=draw(READINGS),
        text_changed=draw(st.booleans()),
        probe_waited=draw(st.integers(-1, 100)),
        healthy=tuple(draw(st.lists(st.floats(-0.5, 0.1), max_size=6))),
        can_probe=draw(st.booleans()),
        loss_excess=draw(READINGS),
        loss_noise=draw(st.none() | st.floats(0, 1)),
        differences=tuple(draw(st.lists(st.just(DECAY), max_size=1))),
        recurrences=draw(st.integers(0, 4)),
        tried=tuple(draw(st.lists(st.sampled_from(list(Act)), max_size=4))),
        last_depth=draw(st.integers(0, 100)),
        slots=tuple(sorted(draw(st.lists(st.integers(0, 5000), max_size=5)))),
        slope=draw(st.none() | st.floats(-0.01, 0.1)),
        resumed_at=draw(st.none() | st.integers(0, 5000)),
        source=draw(st.none() | st.just("web")),
        suspect_rank=draw(st.none() | st.just(3)),
        rollbacks=draw(st.integers(0, 6)),
        skipped=draw(st.integers(0, 600)),
        lr_reductions=draw(st.integers(0, 3)),
        relaunches_left=draw(st.integers(0, 1)),
    )


@settings(max_examples=examples(120), deadline=None)
@given(situations())
def test_budgets_hold_in_every_situation(case: Situation) -> None:
    found = decide(case, LIMITS)
    if found.is_rollback:
        assert case.rollbacks < LIMITS.max_rollbacks
        assert found.chosen.target is not None
        assert found.chosen.target <= case.onset - case.margin
    if found.act in SKIPPING:
        assert case.skipped + case.step - case.onset <= LIMITS.max_skipped_batches
    if found.act is Act.LOWER_LR:
        assert case.lr_reductions < LIMITS.max_lr_reductions
    if found.act is Act.RELAUNCH:
        assert case.relaunches_left


@settings(max_examples=examples(120), deadline=None)
@given(situations(), st.sampled_from([s for s, t in TRAITS.items() if t.is_slow]))
def test_one_slow_signal_never_rolls_back(case: Situation, symptom: str) -> None:
    alone = dataclasses.replace(
        case,
        symptoms=(symptom,),
        signals=("loss",),
        differences=(),
        bad_recently=0,
        bad_in_a_row=0,
        probe=None,
        rise=None,
        loss_excess=None,
    )
    assert decide(alone, LIMITS).act not in ROLLBACKS | {Act.STOP}
    healthy = dataclasses.replace(alone, probe=-1.0, healthy=HEALTHY)
    assert decide(healthy, LIMITS).act not in ROLLBACKS | {Act.STOP}


@settings(max_examples=examples(100), deadline=None)
@given(situations())
def test_costs_are_totally_ordered_and_the_chosen_one_is_the_least(case: Situation) -> None:
    found = decide(case, LIMITS)
    assert not math.isnan(found.chosen.cost)
    assert found.chosen.refused == ""
    costs = [option.cost for option in found.alternatives]
    assert costs == sorted(costs)
    assert all(
        found.chosen.cost <= option.cost for option in found.alternatives if not option.refused
    )


@settings(max_examples=examples(100), deadline=None)
@given(situations(), st.integers(0, 4))
def test_each_recurrence_goes_deeper(case: Situation, recurrences: int) -> None:
    now = dataclasses.replace(case, recurrences=recurrences)
    more = dataclasses.replace(case, recurrences=recurrences + 1, last_depth=now.depth)
    assert more.depth >= 2 * now.depth


@settings(max_examples=examples(80), deadline=None)
@given(situations())
def test_a_probe_that_is_not_finite_means_broken_weights(case: Situation) -> None:
    broken = dataclasses.replace(
        case, symptoms=(Symptom.LOSS_SPIKE,), resumed_at=None, probe=math.nan, probe_waited=100
    )
    alike = dataclasses.replace(broken, probe=math.inf)
    assert decide(broken, LIMITS).act is decide(alike, LIMITS).act
    if case.certainty > 0:
        assert decide(broken, LIMITS).act is not Act.WAIT


@settings(max_examples=30, deadline=None)
@given(st.lists(situations(), max_size=5))
def test_decisions_computed_again_from_their_file_are_the_same(cases: list[Situation]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decisions.jsonl"
        log = DecisionLog(path, LIMITS)
        for case in cases:
            log.append(case, decide(case, LIMITS))
        assert recompute(path) == (len(cases), [])


def test_a_weight_that_is_infinite_while_losses_are_finite_is_not_skipped_for() -> None:
    known = {"probe": 0.86, "probe_waited": 4, "waited": 4, "slope": 0.004}
    assert look(Symptom.NONFINITE_NORM, signals=("param_norm",), **known).act is Act.RESTORE


def test_a_stop_names_what_a_person_should_look_at() -> None:
    again = look(
        Symptom.NONFINITE_LOSS,
        probe=math.nan,
        probe_waited=2,
        recurrences=2,
        last_depth=50,
        tried=(Act.RESTORE, Act.RESTORE),
        note="output of blocks.3 grew 900 times",
    )
    assert again.act is Act.STOP
    assert "output of blocks.3 grew 900 times" in again.reason


def test_a_decision_that_was_changed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    case = situation(Symptom.STATE_LOST)
    other = decide(situation(Symptom.GRADIENT_SPIKE), LIMITS)
    DecisionLog(path, LIMITS).append(case, other)
    number, mismatches = recompute(path)
    assert number == 1
    assert mismatches[0].computed["chosen"]["act"] == "restore"


def test_the_family_that_decides_is_the_gravest() -> None:
    case = situation(Symptom.LOSS_SPIKE, Symptom.LR_JUMP, Symptom.GRADIENT_SPIKE)
    assert (case.family, case.margin) == (Family.RATE, 1)


def view(step: int, **options: Any) -> SettingsView:
    return SettingsView(step=step, options=[[options]], requires_grad={"w": True})


def test_a_setting_on_a_schedule_is_no_difference() -> None:
    healthy = [view(100, lr=1.0, momentum=0.9, eps=1e-8), view(120, lr=0.9, momentum=0.8, eps=1e-8)]
    now = view(130, lr=1.0, momentum=0.7, eps=1e-2)
    assert [part.name for part in find_differences(healthy, now, with_rate=False)] == [
        "group 0 eps"
    ]
    assert len(find_differences(healthy, now, with_rate=True)) == 2
    jumped = view(130, lr=9.0, momentum=0.7, eps=1e-8)
    assert [p.name for p in find_differences(healthy, jumped, with_rate=False)] == ["group 0 lr"]
    (eps,) = find_differences(healthy, now, with_rate=False, planned_changes=[125])
    assert eps.is_announced


def test_a_rate_that_falls_is_no_difference() -> None:
    assert not find_differences([view(100, lr=1.0)], view(130, lr=0.1), with_rate=True)


def test_a_rate_that_rises_again_is_compared_with_its_lowest_value() -> None:
    rates = {190: 4e-3, 220: 3.2e-3, 230: 3e-3, 240: 3.1e-3, 244: 3.3e-3}
    views = [
        SettingsView(step=s, options=[[{"lr": r}]], requires_grad={}) for s, r in rates.items()
    ]
    found = find_differences(views[:1], views[-1], with_rate=True, later=views[1:-1])
    assert [(part.before, part.step) for part in found] == [(3e-3, 230)]
    assert not find_differences(views[:1], views[-1], with_rate=True)


def test_a_frozen_parameter_is_a_difference() -> None:
    now = dataclasses.replace(view(130), requires_grad={"w": False})
    (found,) = find_differences([view(120)], now, with_rate=False)
    assert found.name == "requires_grad of w"
    assert found.ratio == math.inf


def test_betas_are_compared_by_what_they_average_over() -> None:
    found = SettingDifference(name="group 0 betas", before=(0.9, 0.95), after=(0.9, 0.9999))
    assert found.ratio == pytest.approx(500)


def test_a_reading_a_little_above_the_healthy_ones_does_not_show_that_a_remedy_failed() -> None:
    # Of a run that had been restored to the bits of its twin.
    mean, sigma = scale_of([-0.526, -0.475, -0.666, -0.529, -0.464], 8)
    reading = Reading(value=-0.377, mean=mean, sigma=sigma)
    assert not reading.is_healthy
    assert not reading.shows_forgetting
    assert dataclasses.replace(reading, value=-0.1).shows_forgetting
