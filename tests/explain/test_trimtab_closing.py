"""The incident state machine of trimtab's rules: what an incident is, and when it ends."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.kit.synthetic import block_of

from trimtab.core.block import Block, Column, Event
from trimtab.core.events import NOT_APPLIED
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Transition
from trimtab.explain.incidents.closing import MAX_REOPENED, SETTLED, ClosingRules
from trimtab.explain.incidents.tracker import IncidentTracker

NOISE = 0.1
ONSET = 300
MILD = {IncidentClass.RECOVERABLE, IncidentClass.HARD_BATCH}


def losses(rows: int = 800, *, fall: float = 0.0, seed: int = 0) -> np.ndarray:
    """A loss with noise that falls by this much per unit of the logarithm of the step."""
    noise = np.random.default_rng(seed).normal(0, NOISE, rows)
    return 4.0 - fall * np.log((np.arange(rows) + 1) / 100) + noise


def alarm(
    row: int, symptom: Symptom = Symptom.LOSS_SPIKE, severity: Severity = Severity.ALARM
) -> Finding:
    return Finding(
        detector="test",
        symptom=symptom,
        severity=severity,
        signal="loss",
        step=row,
        tick=row,
        value=1.0,
    )


def judged(
    loss: np.ndarray, *alarms: Finding, until: int | None = None, **signals: np.ndarray
) -> tuple[Incident, list[IncidentChange]]:
    """The only incident of a run, and what changed about it."""
    incidents, changes = all_judged(loss, *alarms, until=until, **signals)
    (incident,) = incidents
    return incident, changes


def all_judged(
    loss: np.ndarray, *alarms: Finding, until: int | None = None, **signals: np.ndarray
) -> tuple[list[Incident], list[IncidentChange]]:
    """Every incident of a run, and what changed about it."""
    columns = {"loss": loss, **signals}
    block = block_of({name: column[:until] for name, column in columns.items()}, first_step=0)
    tracker = IncidentTracker(ClosingRules())
    changes = [*tracker.update(block, alarms), *tracker.finish()]
    last = {change.incident.number: change.incident for change in changes}
    now = tracker.open_incident
    return list((last if now is None else last | {now.number: now}).values()), changes


def transitions(changes: Sequence[IncidentChange]) -> list[Transition]:
    return [change.transition for change in changes]


def test_a_spike_that_comes_back_is_recoverable_and_ends_where_it_came_back() -> None:
    loss = losses()
    loss[ONSET : ONSET + 20] += 1.0
    incident, changes = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.RECOVERABLE
    assert incident.end is not None
    assert ONSET + 20 <= incident.end.step <= ONSET + 25
    assert transitions(changes)[-2:] == [Transition.CLASSIFIED, Transition.CLOSED]


def test_one_high_loss_is_a_hard_batch() -> None:
    loss = losses()
    loss[ONSET] += 1.0
    incident, _ = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.HARD_BATCH
    gradient = alarm(ONSET, Symptom.GRADIENT_SPIKE)
    incident, _ = judged(loss, alarm(ONSET), gradient)
    assert incident.incident_class is IncidentClass.RECOVERABLE  # it moved the weights
    incident, _ = judged(loss, alarm(ONSET), alarm(ONSET, Symptom.REPEATED_BATCH))
    assert incident.incident_class is IncidentClass.HARD_BATCH


def test_a_level_that_stays_lingers_and_is_reported_as_the_new_normal() -> None:
    loss = losses()
    loss[ONSET:] += 0.5
    incident, changes = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.LINGERING
    assert transitions(changes)[-2:] == [Transition.REBASELINED, Transition.CLOSED]
    assert incident.new_level is not None
    assert abs(incident.new_level - 4.5) < NOISE
    assert changes[-2].tick - ONSET <= SETTLED * 100 + 1


def test_an_alarm_dated_back_into_an_incident_that_lingers_is_no_new_incident() -> None:
    loss = losses(1600)
    loss[ONSET:] += 0.5
    late = dataclasses.replace(alarm(ONSET + 500, Symptom.LEVEL_SHIFT), onset_tick=ONSET + 100)
    incident, changes = judged(loss, alarm(ONSET), late)
    assert incident.incident_class is IncidentClass.LINGERING
    assert transitions(changes)[-1] is Transition.CLOSED


def test_a_gap_that_the_trend_hides_does_not_count_as_a_recovery() -> None:
    loss = losses(500, fall=1.5)
    loss[ONSET:] += 0.6
    assert loss[ONSET + 150 :].mean() < loss[ONSET - 20 : ONSET].mean()  # under the old level again
    incident, _ = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.LINGERING


def test_a_loss_that_runs_away_is_divergent_also_when_the_log_ends_early() -> None:
    loss = losses()
    loss[ONSET:] += 0.03 * np.arange(len(loss) - ONSET)
    assert judged(loss, alarm(ONSET + 10))[0].incident_class is IncidentClass.DIVERGENT
    early, changes = judged(loss, alarm(ONSET + 10), until=ONSET + 60)
    assert early.incident_class is IncidentClass.DIVERGENT
    assert early.end is None
    assert transitions(changes)[-1] is Transition.CLASSIFIED


def test_a_loss_far_above_that_does_not_fall_is_divergent_and_one_that_falls_recovers() -> None:
    loss = losses()
    loss[ONSET:] += 2.0
    assert judged(loss, alarm(ONSET))[0].incident_class is IncidentClass.DIVERGENT
    loss[ONSET:] -= 0.004 * np.arange(len(loss) - ONSET)
    incident, _ = judged(loss, alarm(ONSET))
    assert incident.incident_class is IncidentClass.RECOVERABLE
    assert incident.back_in is not None


def test_a_loss_that_is_back_at_its_level_before_a_drop_is_not_divergent() -> None:
    loss = losses()
    loss[ONSET - 60 : ONSET] -= 3.0  # the same batch, memorized
    assert judged(loss, alarm(ONSET))[0].incident_class is not IncidentClass.DIVERGENT


def test_non_finite_losses_that_stay_are_divergent() -> None:
    loss = losses()
    loss[ONSET:] = np.nan
    incident, _ = judged(loss, alarm(ONSET, Symptom.NONFINITE_LOSS))
    assert incident.incident_class is IncidentClass.DIVERGENT
    assert incident.end is None


def test_non_finite_weights_with_a_higher_loss_are_divergent() -> None:
    loss = losses()
    loss[ONSET:] += 0.5
    norm = np.full(len(loss), 7.0)
    norm[ONSET:] = np.inf
    found = alarm(ONSET, Symptom.NONFINITE_NORM), alarm(ONSET)
    assert judged(loss, *found, param_norm=norm)[0].incident_class is IncidentClass.DIVERGENT
    norm[ONSET + 10 :] = 7.0  # restored
    assert judged(loss, *found, param_norm=norm)[0].incident_class is IncidentClass.LINGERING


@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize("count", [1, 3, 30, 100])
def test_losses_that_were_not_finite_and_are_back_were_not_of_lost_weights(
    count: int, every: int
) -> None:
    rows = ONSET + every * np.arange(count)
    loss = losses(ONSET + every * count + 200)
    loss[rows] = np.nan
    found = [alarm(int(row), Symptom.NONFINITE_LOSS) for row in rows[:: 1 if every > 1 else count]]
    incidents, changes = all_judged(loss, *found)
    assert {one.incident_class for one in incidents} <= MILD
    assert all(one.end is not None for one in incidents)
    named = {change.incident.incident_class for change in changes}
    assert (IncidentClass.DIVERGENT in named) is (count >= 3 and every == 1)  # none was finite yet
    # The same steps, kept out: not even in between.
    discarded = np.zeros(len(loss))
    discarded[rows] = 1.0
    incidents, changes = all_judged(loss, *found, discarded=discarded)
    assert len(incidents) == 1
    assert incidents[0].was_kept_out
    named = {change.incident.incident_class for change in changes}
    assert named == {None, IncidentClass.RECOVERABLE}
    incidents, changes = all_judged(loss, *found, until=int(rows[-1]) + 1, discarded=discarded)
    assert IncidentClass.DIVERGENT not in {change.incident.incident_class for change in changes}


def test_a_step_that_the_loop_itself_did_not_apply_was_kept_out() -> None:
    loss = losses()
    loss[ONSET : ONSET + 5] = np.nan
    block = block_of({"loss": loss}, first_step=0)
    skipped = [Event(kind=NOT_APPLIED, tick=at - 2, step=at) for at in range(ONSET, ONSET + 5)]
    block = dataclasses.replace(block, events=tuple(skipped))
    tracker = IncidentTracker(ClosingRules())
    changes = tracker.update(block, [alarm(ONSET, Symptom.NONFINITE_LOSS)])
    assert all(change.incident.was_kept_out for change in changes)
    assert changes[-1].incident.incident_class is IncidentClass.RECOVERABLE


def test_a_kept_out_step_among_others_that_were_applied_is_judged_by_the_loss() -> None:
    loss, discarded = losses(), np.zeros(800)
    loss[ONSET:] = np.nan
    discarded[ONSET : ONSET + 5] = 1.0  # then the gate was taken out
    incident, _ = judged(loss, alarm(ONSET, Symptom.NONFINITE_LOSS), discarded=discarded)
    assert not incident.was_kept_out
    assert incident.incident_class is IncidentClass.DIVERGENT


def test_an_alarm_that_the_loss_does_not_follow_is_silent() -> None:
    incident, changes = judged(losses(), alarm(ONSET, Symptom.STATE_RESET))
    assert incident.incident_class is IncidentClass.SILENT
    assert incident.end is not None
    assert incident.end.step == ONSET
    assert changes[-1].tick == ONSET + 99
    assert incident.new_level is None


def test_an_alarm_that_the_loss_follows_is_classified_by_the_loss() -> None:
    loss = losses()
    loss[ONSET + 10 : ONSET + 60] += 0.4
    incident, _ = judged(loss, alarm(ONSET, Symptom.LR_JUMP))
    assert incident.incident_class is IncidentClass.RECOVERABLE


def test_no_learning_is_a_plateau() -> None:
    incident, _ = judged(losses(), alarm(ONSET, Symptom.NO_LEARNING))
    assert incident.incident_class is IncidentClass.PLATEAU
    incident, _ = judged(losses(), alarm(ONSET, Symptom.NO_LEARNING), until=ONSET + 10)
    assert incident.incident_class is IncidentClass.PLATEAU


def test_a_loss_far_above_that_does_not_learn_is_divergent_and_no_plateau() -> None:
    loss = losses()
    loss[ONSET:] += 10.0
    incident, _ = judged(loss, alarm(ONSET), alarm(ONSET + 90, Symptom.NO_LEARNING))
    assert incident.incident_class is IncidentClass.DIVERGENT


def test_every_open_incident_has_an_outlook_at_8_and_32_records() -> None:
    loss = losses()
    for height, symptom in ((1.0, Symptom.LOSS_SPIKE), (0.0, Symptom.FROZEN)):
        loss[ONSET:] += height
        _, changes = judged(loss, alarm(ONSET, symptom), until=ONSET + 60)
        forecasts = [
            change.incident.outlook.records
            for change in changes
            if change.transition is Transition.FORECAST and change.incident.outlook
        ]
        assert forecasts == [8, 32]
        assert changes[-1].incident.outlook is not None
        assert 0.5 < changes[-1].incident.outlook.certainty < 1


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
    changes = IncidentTracker(ClosingRules()).update(block, [alarm(ONSET, Symptom.FROZEN)])
    assert transitions(changes) == [Transition.OPENED, Transition.CLOSED]
    assert changes[-1].tick <= ONSET + SETTLED * 100 + 1


STRIDE = 50
MOST_RECORDS = SETTLED * 2
"""In a log of every 50th step two records are the time to recover."""

values = st.one_of(
    st.none(), st.floats(0.5, 3.0), st.sampled_from([np.nan, np.inf, -np.inf, 9.0, 1e300, -1e300])
)
symptoms = st.sampled_from(list(Symptom))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(values, min_size=1, max_size=150),
    st.lists(st.tuples(st.integers(0, 149), symptoms), max_size=150),
)
@example([2.0] * 120, [(4 * count, Symptom.FROZEN) for count in range(30)])
@example([None] * 120, [(count, Symptom.FROZEN) for count in range(120)])
@example([9.0] * 120, [(count, Symptom.LOSS_SPIKE) for count in range(120)])
def test_no_incident_stays_open_or_is_reopened_for_ever(
    after: list[float | None], alarms: list[tuple[int, Symptom]]
) -> None:
    quiet = [2.0 + 0.01 * (row % 7) for row in range(20)]
    entries = [*quiet, *after]
    present = np.array([entry is not None for entry in entries])
    loss = np.array([np.nan if entry is None else entry for entry in entries])
    block = Block.from_columns(
        {"loss": Column(loss, present)}, step=STRIDE * np.arange(len(entries))
    )
    findings = [alarm(20 + row, symptom) for row, symptom in sorted(alarms) if row < len(after)]
    tracker = IncidentTracker(ClosingRules())
    lasted = blind = 0
    reopened: dict[int, int] = {}
    for row, part in enumerate(block.cut(1)):
        changes = tracker.update(part, [item for item in findings if item.tick == row])
        for change in changes:
            number = change.incident.number
            if change.transition in (Transition.OPENED, Transition.REOPENED):
                lasted = blind = 0
                reopened[number] = reopened.get(number, -1) + 1
            if change.transition is Transition.CLOSED and change.incident.new_level is not None:
                assert Transition.REBASELINED in transitions(changes)
        if tracker.open_incident is None:
            continue
        lasted += bool(present[row])
        blind = 0 if present[row] else blind + 1
        assert lasted <= MOST_RECORDS or not np.isfinite(loss[row])
        assert blind <= MOST_RECORDS
    assert all(count <= MAX_REOPENED for count in reopened.values())
