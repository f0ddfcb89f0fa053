"""The incident state machine of trimtab's rules: what an incident is, and when it ends."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.kit.synthetic import Array, block_of
from tests.kit.tracked import alarm, classes, tracked, transitions

from trimtab.core.block import Block, Column, Event
from trimtab.core.events import NOT_APPLIED, UNDO, UNDO_OUTCOME
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incident_facts import Course, Level
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Transition
from trimtab.explain.incidents.rules import (
    CALM_STEPS,
    MAX_REOPENED,
    MISSING_RECORDS,
    SETTLE_STEPS,
)
from trimtab.explain.verdict.table import STANDSTILL_STEPS

NOISE = 0.1
ONSET = 300


def losses(rows: int = 800, *, fall: float = 0.0, noise: float = NOISE, seed: int = 0) -> Array:
    """A loss with noise that falls by this much per unit of the logarithm of the step."""
    noises = np.random.default_rng(seed).normal(0, noise, rows)
    return np.asarray(4.0 - fall * np.log((np.arange(rows) + 1) / 100) + noises)


def judged(
    loss: Array,
    *alarms: Finding,
    until: int | None = None,
    events: Sequence[Event] = (),
    **signals: Array,
) -> tuple[Incident, list[IncidentChange]]:
    """The only incident of a run, and what changed about it."""
    incidents, changes = all_judged(loss, *alarms, until=until, events=events, **signals)
    (incident,) = incidents
    return incident, changes


def all_judged(
    loss: Array,
    *alarms: Finding,
    until: int | None = None,
    events: Sequence[Event] = (),
    **signals: Array,
) -> tuple[list[Incident], list[IncidentChange]]:
    """Every incident of a run, and what changed about it."""
    columns = {"loss": loss, **signals}
    block = block_of({name: column[:until] for name, column in columns.items()}, first_step=0)
    return tracked(dataclasses.replace(block, events=tuple(events)), *alarms)


def level(incident: Incident) -> Level:
    assert incident.facts.level is not None
    return incident.facts.level


def test_a_spike_that_comes_back_is_recovered_and_ends_where_it_came_back() -> None:
    loss = losses()
    loss[ONSET : ONSET + 20] += 1.0
    incident, changes = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.RECOVERED
    assert incident.end is not None
    assert ONSET + 18 <= incident.end.step <= ONSET + 25
    assert incident.records == incident.end.step - ONSET + 1
    assert transitions(changes)[-1] is Transition.CLOSED


@pytest.mark.parametrize("symptom", [Symptom.GRADIENT_SPIKE, Symptom.REPEATED_BATCH])
def test_one_high_loss_is_recovered_at_the_next_record(symptom: Symptom) -> None:
    loss = losses()
    loss[ONSET] += 1.0
    for found in ([alarm(ONSET)], [alarm(ONSET), alarm(ONSET, symptom)]):
        incident, _ = judged(loss, *found)
        assert incident.incident_class is IncidentClass.RECOVERED
        assert incident.end is not None
        assert incident.end.step == ONSET + 1


def test_a_level_that_stays_lingers_and_becomes_the_new_normal() -> None:
    loss = losses(1600)
    loss[ONSET:] += 0.5
    incident, changes = judged(loss, alarm(ONSET))
    assert classes(changes) == [IncidentClass.OPEN, IncidentClass.LINGERING]
    assert transitions(changes)[-1] is Transition.CLOSED
    assert abs(level(incident).now - 4.5) < NOISE
    said = next(change.tick for change in changes if change.transition is Transition.CLASSIFIED)
    assert SETTLE_STEPS <= changes[-1].tick - said < 2 * SETTLE_STEPS
    # Against the new level the next one is measured.
    loss[1400:] += 0.5
    second = all_judged(loss, alarm(ONSET), alarm(1400))[0][-1]
    assert second.number == 2
    assert abs(level(second).before - 4.5) < NOISE


@pytest.mark.parametrize("row", [ONSET + 500, ONSET + 1000])
def test_an_alarm_dated_back_into_an_incident_that_lingers_is_no_new_incident(row: int) -> None:
    loss = losses(1600)
    loss[ONSET:] += 0.5
    late = alarm(row, Symptom.LEVEL_SHIFT, onset=ONSET + 100)
    incident, changes = judged(loss, alarm(ONSET), late)
    assert incident.incident_class is IncidentClass.LINGERING
    assert transitions(changes)[-1] is Transition.CLOSED
    assert incident.num_findings == 2 or changes[-1].tick < row


def test_a_gap_that_the_trend_hides_does_not_count_as_a_recovery() -> None:
    loss = losses(fall=1.5, noise=0.01)
    loss[ONSET:] += 0.7
    assert loss[470:480].mean() < loss[ONSET - 20 : ONSET].mean()  # under the old level again
    incident, _ = judged(loss, alarm(ONSET), until=480)
    assert incident.incident_class is not IncidentClass.RECOVERED
    assert level(incident).gap > 0.1


def test_a_loss_that_runs_away_is_divergent_also_when_the_log_ends_early() -> None:
    loss = losses()
    loss[ONSET:] += 0.03 * np.arange(len(loss) - ONSET)
    assert judged(loss, alarm(ONSET + 10))[0].incident_class is IncidentClass.DIVERGENT
    early, _ = judged(loss, alarm(ONSET + 10), until=ONSET + 120)
    assert early.incident_class is IncidentClass.DIVERGENT
    assert early.end is None
    too_early, _ = judged(loss, alarm(ONSET + 10), until=ONSET + 60)
    assert too_early.incident_class is IncidentClass.OPEN  # a spike may rise for 100 steps
    assert level(too_early).course is Course.GROWING


def test_a_loss_far_above_lingers_and_one_that_falls_is_on_its_way_back() -> None:
    loss = losses()
    loss[ONSET:] += 2.0
    assert judged(loss, alarm(ONSET))[0].incident_class is IncidentClass.LINGERING
    loss[ONSET:] -= 0.004 * np.arange(len(loss) - ONSET)
    incident, _ = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.RECOVERING
    assert level(incident).back_in is not None


def test_a_loss_that_lost_what_was_learnt_and_does_not_fall_is_divergent() -> None:
    loss = losses(fall=1.0)
    loss[ONSET:] = losses()[ONSET:] + 3.6  # where the run began
    incident, _ = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.DIVERGENT
    assert level(incident).lost > 0.9


def test_a_loss_that_is_back_after_a_batch_that_was_memorized_is_recovered() -> None:
    loss = losses()
    loss[ONSET - 60 : ONSET] -= 3.0
    again = alarm(ONSET - 60, Symptom.REPEATED_BATCH)
    for incident in all_judged(loss, again, alarm(ONSET))[0]:
        assert incident.incident_class in (IncidentClass.RECOVERED, IncidentClass.SILENT)


def test_non_finite_weights_are_dead_and_restored_ones_are_judged_by_the_loss() -> None:
    loss = losses(1200)
    loss[ONSET:] += 0.5
    norm = np.full(len(loss), 7.0)
    norm[ONSET:] = np.inf
    found = alarm(ONSET, Symptom.NONFINITE_NORM), alarm(ONSET)
    assert judged(loss, *found, param_norm=norm)[0].incident_class is IncidentClass.DEAD
    norm[ONSET + 10 :] = 7.0  # restored
    assert judged(loss, *found, param_norm=norm)[0].incident_class is IncidentClass.LINGERING


@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize("count", [1, 2, 3, 30, 100])
def test_losses_that_were_not_finite_and_are_back_were_not_of_lost_weights(
    count: int, every: int
) -> None:
    rows = ONSET + every * np.arange(count)
    loss = losses(ONSET + every * count + 300)
    loss[rows] = np.nan
    found = [alarm(int(row), Symptom.NONFINITE_LOSS) for row in rows[:: 1 if every > 1 else count]]
    incident, changes = judged(loss, *found)
    assert incident.incident_class is IncidentClass.RECOVERED
    # None was finite yet.
    assert (IncidentClass.DEAD in classes(changes)) is (count >= 3 and every == 1)


@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize("count", [1, 2, 3, STANDSTILL_STEPS, 100])
def test_steps_that_were_kept_out_are_nothing_else_unless_so_many_in_a_row_stand_still(
    count: int, every: int
) -> None:
    rows = ONSET + every * np.arange(count)
    loss = losses(ONSET + every * count + 300)
    loss[rows], discarded = np.nan, np.zeros(len(loss))
    discarded[rows] = 1.0
    found = [alarm(int(row), Symptom.NONFINITE_LOSS) for row in rows[:: 1 if every > 1 else count]]
    incident, changes = judged(loss, *found, discarded=discarded)
    kept_out = IncidentClass.KEPT_OUT
    stands_still = every == 1 and count >= STANDSTILL_STEPS
    said = [kept_out, IncidentClass.DEAD] if stands_still else [kept_out]
    assert classes(changes) == ([*said, kept_out] if stands_still else said)
    assert incident.end is not None
    assert incident.end.step == rows[-1]
    assert incident.records == rows[-1] - ONSET + 1
    incident, changes = judged(loss, *found, until=int(rows[-1]) + 1, discarded=discarded)
    assert classes(changes) == said


def test_a_step_that_the_loop_itself_did_not_apply_was_kept_out() -> None:
    loss = losses()
    loss[ONSET : ONSET + 5] = np.nan
    skipped = [Event(kind=NOT_APPLIED, tick=at - 2, step=at) for at in range(ONSET, ONSET + 5)]
    _, changes = judged(loss, alarm(ONSET, Symptom.NONFINITE_LOSS), events=skipped)
    assert classes(changes) == [IncidentClass.KEPT_OUT]


def test_a_step_that_no_watched_optimizer_applied_as_no_step_before_is_not_kept_out() -> None:
    loss = losses(ONSET + 40)
    loss[ONSET:] = np.nan
    # Their ticks are those of the last update that was seen, as the exchange writes them.
    others = [
        Event(kind=NOT_APPLIED, tick=ONSET - 50, step=at, facts={"why": "skipped by the user"})
        for at in range(ONSET - 50, len(loss))
    ]
    found = alarm(ONSET, Symptom.NONFINITE_LOSS)
    only_bad = [one for one in others if one.step >= ONSET]  # the loop skips what is not finite
    alone, _ = judged(loss, found, until=ONSET + 3, events=only_bad)
    assert alone.incident_class is IncidentClass.KEPT_OUT
    first, _ = judged(loss, found, until=ONSET + 1, events=others)
    assert first.incident_class is not IncidentClass.KEPT_OUT
    last, _ = judged(loss, found, events=others)
    assert last.incident_class is IncidentClass.DEAD


def test_a_kept_out_step_among_others_that_were_applied_is_judged_by_the_loss() -> None:
    loss, discarded = losses(), np.zeros(800)
    loss[ONSET:] = np.nan
    discarded[ONSET : ONSET + 5] = 1.0  # then the gate was taken out
    incident, _ = judged(loss, alarm(ONSET, Symptom.NONFINITE_LOSS), discarded=discarded)
    assert not incident.facts.is_kept_out
    assert incident.incident_class is IncidentClass.DEAD


@pytest.mark.parametrize("helped", [True, None, False])
def test_damage_that_was_undone_is_restored_unless_the_loss_did_not_return(
    helped: bool | None,
) -> None:
    loss = losses(1600)
    loss[ONSET : ONSET + 4] += 2.0
    if helped is False:
        loss[ONSET + 4 :] += 1.0
    undone = Event(kind=UNDO, tick=ONSET + 4, step=ONSET + 4, facts={"updates_lost": 5})
    events = [undone]
    if helped is not None:
        facts = {"undone_at": ONSET + 4, "helped": helped}
        events += [Event(kind=UNDO_OUTCOME, tick=ONSET + 30, step=ONSET + 30, facts=facts)]
    incident, _ = judged(loss, alarm(ONSET), alarm(ONSET, Symptom.HARMED_STATE), events=events)
    assert incident.facts.undone_updates == 5
    named = IncidentClass.LINGERING if helped is False else IncidentClass.RESTORED
    assert incident.incident_class is named


def test_an_incident_that_was_undone_is_restored_until_the_undo_has_failed() -> None:
    loss, norm = losses(ONSET + 60), np.full(ONSET + 60, 10.0)
    loss[ONSET : ONSET + 3], norm[ONSET] = np.nan, np.inf
    present = np.arange(len(norm)) <= ONSET  # the next one is telemetry of 100 steps later
    undone = Event(kind=UNDO, tick=ONSET, step=ONSET + 2, facts={"updates_lost": 29})
    failed = Event(
        kind=UNDO_OUTCOME,
        tick=ONSET + 30,
        step=ONSET + 30,
        facts={"undone_at": ONSET + 2, "helped": False},
    )
    columns = {"loss": Column.complete(loss), "param_norm": Column(norm, present)}
    run = dataclasses.replace(block_of({"loss": loss}, first_step=0), columns=columns)
    found = [alarm(ONSET, s) for s in (Symptom.NONFINITE_LOSS, Symptom.NONFINITE_NORM)]
    for events, until, named in (
        ((), ONSET + 4, IncidentClass.DEAD),
        ((undone,), ONSET + 1, IncidentClass.RESTORED),
        ((undone,), ONSET + 60, IncidentClass.RESTORED),
        ((undone, failed), ONSET + 60, IncidentClass.DEAD),
    ):
        incidents, _ = tracked(dataclasses.replace(run, events=events)[:until], *found)
        assert [one.incident_class for one in incidents] == [named]


def test_an_alarm_that_the_loss_does_not_follow_is_silent() -> None:
    incident, changes = judged(losses(), alarm(ONSET, Symptom.STATE_RESET))
    assert classes(changes) == [IncidentClass.SILENT]
    assert incident.end is not None
    assert incident.end.step == ONSET
    assert CALM_STEPS <= changes[-1].tick - ONSET < 1.2 * CALM_STEPS


def test_an_alarm_that_the_loss_follows_is_classified_by_the_loss() -> None:
    loss = losses(1200)
    loss[ONSET + 10 :] += 0.4
    found = alarm(ONSET, Symptom.LR_JUMP), alarm(ONSET + 13)
    incident, changes = judged(loss, *found)
    assert incident.onset.step == ONSET
    assert classes(changes)[0] is IncidentClass.SILENT
    assert incident.incident_class is IncidentClass.LINGERING
    loss[ONSET + 60 :] -= 0.4
    assert judged(loss, *found)[0].incident_class is IncidentClass.RECOVERED


@pytest.mark.parametrize("before", [5, ONSET])
def test_an_alarm_of_another_signal_is_not_silent_once_the_loss_has_left_its_level(
    before: int,
) -> None:
    loss = losses(before + 12)
    loss[before:] += 1.5
    incident, _ = judged(loss, alarm(before, Symptom.GRADIENT_SPIKE))
    assert incident.incident_class is IncidentClass.OPEN


def test_a_loss_far_above_that_does_not_learn_is_divergent_and_no_plateau() -> None:
    loss = losses()
    loss[ONSET:] += 10.0
    incident, _ = judged(loss, alarm(ONSET), alarm(ONSET + 90, Symptom.NO_LEARNING))
    assert incident.incident_class is IncidentClass.DIVERGENT


def test_the_onset_is_dated_back_to_a_warning_that_led_up_to_it_but_not_to_a_slow_step() -> None:
    loss = losses()
    loss[ONSET : ONSET + 20] += 1.0
    precursor = alarm(ONSET - 4, Symptom.STALE_MOMENT, Severity.WARN)
    slow = alarm(ONSET - 8, Symptom.SLOW, Severity.WARN)
    incident, _ = judged(loss, slow, precursor, alarm(ONSET))
    assert incident.onset.step == ONSET - 4


def test_an_incident_is_over_when_the_loss_is_no_longer_recorded() -> None:
    loss = losses(1200)
    present = np.arange(len(loss)) < ONSET
    block = Block.from_columns({"loss": Column(loss, present)}, step=np.arange(len(loss)))
    changes = tracked(block, alarm(ONSET, Symptom.FROZEN))[1]
    assert transitions(changes) == [Transition.OPENED, Transition.CLOSED]
    assert changes[-1].tick <= ONSET + MISSING_RECORDS + 1


# One story, one incident


@pytest.mark.parametrize("symptom", [Symptom.STALL, Symptom.SLOW, Symptom.MISSING_LOSS])
@pytest.mark.parametrize("lead", [-10, 0, 10])
def test_lost_time_is_an_incident_of_its_own_and_stays_one(symptom: Symptom, lead: int) -> None:
    loss = losses()
    loss[ONSET:] = np.nan
    found = sorted(
        [alarm(ONSET + lead, symptom), alarm(ONSET, Symptom.NONFINITE_LOSS)],
        key=lambda one: one.tick,
    )
    incidents, _ = all_judged(loss, *found)
    told = {one.symptoms: (one.incident_class, one.onset.step) for one in incidents}
    assert told == {
        (symptom,): (IncidentClass.SILENT, ONSET + lead),
        (Symptom.NONFINITE_LOSS,): (IncidentClass.DEAD, ONSET),
    }


@pytest.mark.parametrize(
    ("begins", "is_echo"), [(ONSET, True), (ONSET + 15, True), (ONSET + 60, False)]
)
def test_an_echo_of_a_spike_that_is_over_opens_nothing(begins: int, is_echo: bool) -> None:
    loss = losses()
    loss[ONSET : ONSET + 10] += 1.0
    echo = alarm(ONSET + 120, Symptom.LEVEL_SHIFT, onset=begins)
    incidents, changes = all_judged(loss, alarm(ONSET), echo)
    assert (len(incidents) == 1) is is_echo
    assert transitions(changes).count(Transition.OPENED) == 2 - is_echo
    # A gradient that spikes is no echo, nor is a NaN.
    for symptom in (Symptom.GRADIENT_SPIKE, Symptom.NONFINITE_LOSS):
        other = alarm(ONSET + 120, symptom, onset=begins)
        assert len(all_judged(loss, alarm(ONSET), other)[0]) == 2


def test_a_nan_after_a_loss_that_ran_away_joins_it_with_the_earlier_onset() -> None:
    loss = losses()
    loss[ONSET:] += 0.05 * np.arange(len(loss) - ONSET)
    loss[ONSET + 200 :] = np.nan
    found = alarm(ONSET + 12), alarm(ONSET + 200, Symptom.NONFINITE_LOSS)
    incident, changes = judged(loss, *found)
    assert abs(incident.onset.step - ONSET) <= 5
    assert incident.symptoms == (Symptom.LOSS_SPIKE, Symptom.NONFINITE_LOSS)
    assert classes(changes) == [IncidentClass.OPEN, IncidentClass.DIVERGENT, IncidentClass.DEAD]
    assert Transition.WORSENED in transitions(changes)


@pytest.mark.parametrize(("goes_back_to", "is_closed"), [(ONSET - 50, True), (ONSET + 20, False)])
def test_a_restart_from_before_an_incident_closes_it(goes_back_to: int, is_closed: bool) -> None:
    loss = losses()
    loss[ONSET : ONSET + 100] += 0.05 * np.arange(100)
    steps = np.arange(len(loss))
    steps[ONSET + 100 :] += goes_back_to - (ONSET + 100)
    run = Block.from_columns(
        {"loss": Column.complete(loss)},
        step=steps,
        attempt=(np.arange(len(loss)) >= ONSET + 100).astype(np.int64),
    )
    (incident,), changes = tracked(run, alarm(ONSET + 10))
    closed = [change.tick for change in changes if change.transition is Transition.CLOSED]
    assert (incident.incident_class is IncidentClass.DIVERGENT) is is_closed
    if is_closed:
        assert incident.end == incident.last
        assert incident.last.tick == ONSET + 99
        assert closed == [ONSET + 99]
    else:
        assert closed[0] > ONSET + 100
        assert incident.incident_class is IncidentClass.RECOVERED


# No incident for ever

STRIDE = 50
TAIL = 1200
"""Records after which whatever may end has ended; looks are up to 128 records apart."""

STAYS = {
    IncidentClass.COLLAPSED,
    IncidentClass.DEAD,
    IncidentClass.DIVERGENT,
    IncidentClass.PLATEAU,
}
values = st.one_of(
    st.none(), st.floats(0.5, 3.0), st.sampled_from([np.nan, np.inf, -np.inf, 9.0, 1e300, -1e300])
)
symptoms = st.sampled_from(list(Symptom))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(values, min_size=1, max_size=150),
    st.lists(st.tuples(st.integers(0, 149), symptoms), max_size=150),
    st.sampled_from([2.0, 2.5, None]),
)
@example([2.0] * 120, [(4 * count, Symptom.FROZEN) for count in range(30)], 2.0)
@example([None] * 120, [(count, Symptom.FROZEN) for count in range(120)], None)
@example([9.0] * 120, [(count, Symptom.LOSS_SPIKE) for count in range(120)], 2.5)
def test_no_incident_that_may_pass_stays_open_or_is_reopened_for_ever(
    chaos: list[float | None], alarms: list[tuple[int, Symptom]], then: float | None
) -> None:
    quiet = [2.0 + 0.01 * (row % 7) for row in range(20)]
    tail = [None if then is None else then + 0.01 * (row % 7) for row in range(TAIL)]
    entries = [*quiet, *chaos, *tail]
    present = np.array([entry is not None for entry in entries])
    loss = np.array([np.nan if entry is None else entry for entry in entries])
    block = Block.from_columns(
        {"loss": Column(loss, present)}, step=STRIDE * np.arange(len(entries))
    )
    found = [alarm(20 + row, symptom) for row, symptom in sorted(alarms) if row < len(chaos)]
    incidents, changes = tracked(block, *found)
    for incident in incidents:
        assert incident.end is not None or incident.incident_class in STAYS
        of_this = [one for one in changes if one.incident.number == incident.number]
        assert transitions(of_this).count(Transition.REOPENED) <= MAX_REOPENED


def test_a_loss_that_jumps_where_another_signal_alarms_has_followed() -> None:
    for height, expected in ((8, IncidentClass.RECOVERED), (3, IncidentClass.SILENT)):
        loss = losses()
        loss[ONSET] = 4.0 + height * NOISE
        incident, _ = judged(loss, alarm(ONSET, Symptom.UPDATE_SPIKE))
        assert incident.incident_class is expected
        loss[ONSET], loss[ONSET + 20] = 4.0, 4.0 + height * NOISE  # long after: noise
        incident, _ = judged(loss, alarm(ONSET, Symptom.UPDATE_SPIKE))
        assert incident.incident_class is IncidentClass.SILENT
