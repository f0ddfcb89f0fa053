"""The table, row by row, from drawn curves: what a run did decides on class and instruction."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from tests.kit.cases import one_of_each
from tests.kit.synthetic import Array, block_of
from tests.kit.tracked import alarm, classes, tracked

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, Column
from trimtab.core.findings import Finding, Symptom
from trimtab.core.incident_facts import Course
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass
from trimtab.diagnosis import diagnose
from trimtab.explain.verdict.instruction import Surroundings, instruct
from trimtab.explain.verdict.table import LONG_RISE_RECORDS, STANDSTILL_STEPS, classify

STEPS, ONSET = 3000, 1200
NOISES, STRIDES = (0.5, 1.0, 3.0), (1, 5, 20)
Signals = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A log of a run, with the row of its onset."""

    run: Block
    row: int

    def judged(
        self, *symptoms: Symptom, until: int | None = None
    ) -> tuple[Incident, list[IncidentChange]]:
        """The incident of an alarm at the onset, in a log that ends `until` records after it."""
        found = self.alarms(*symptoms or [Symptom.LOSS_SPIKE])
        run = self.run if until is None else self.run[: self.row + until]
        (incident,), changes = tracked(run, *found)
        return incident, changes

    def alarms(self, *symptoms: Symptom) -> list[Finding]:
        step = int(self.run.step[self.row])
        return [alarm(self.row, symptom, step=step) for symptom in symptoms]


def draw(
    excess: Callable[[Array], Array],
    noise: float = 1.0,
    every: int = 1,
    seed: int = 0,
    signals: Callable[[Array], Signals] = lambda since: {},
) -> Drawn:
    """A loss that falls from 9 to 2, with something added from step 1,200 on.

    Args:
        excess: What is added, by the steps since the onset.
        noise: Noise of one record, in units of 0.03.
        every: Steps from record to record.
        seed: Of the noise.
        signals: The other signals, by the steps since the onset, which are negative before it.
    """
    steps = np.arange(0, STEPS, every)
    since = (steps - ONSET).astype(np.float64)
    loss = 2.0 + 7.0 * np.exp(-steps / 90)
    loss += 0.03 * noise * np.random.default_rng(seed).normal(size=len(steps))
    loss = np.where(since >= 0, loss + excess(np.maximum(since, 0.0)), loss)
    columns = {"loss": loss, **signals(since)}
    run = Block.from_columns(
        {name: Column(values, ~np.isneginf(values)) for name, values in columns.items()},
        step=steps,
    )
    return Drawn(run, int(np.argmax(since >= 0)))


def none(since: Array) -> Array:
    return np.zeros_like(since)


def nan_for(steps: float) -> Callable[[Array], Array]:
    return lambda since: np.where(since < steps, np.nan, 0.0)


def act(incident: Incident) -> ActionKind:
    return instruct(incident, Surroundings()).kind


everywhere = pytest.mark.parametrize(
    ("noise", "every"), one_of_each([(noise, every) for noise in NOISES for every in STRIDES])
)
WAIT, BACK, STOP = ActionKind.WAIT, ActionKind.ROLL_BACK, ActionKind.STOP

ROWS = {
    "type 1": (lambda t: 2.5 * np.exp(-t / 100), IncidentClass.RECOVERED, WAIT),
    "type 1, slow": (lambda t: 2.5 * np.exp(-t / 250), IncidentClass.RECOVERED, WAIT),
    "type 2": (lambda t: 0.6 + 2 * np.exp(-t / 30), IncidentClass.LINGERING, BACK),
    "type 3": (lambda t: 0.01 * t, IncidentClass.DIVERGENT, STOP),
    "type 3, all is lost": (lambda t: 0 * t + 7.5, IncidentClass.DIVERGENT, STOP),
    "blown up": (lambda t: 0 * t + 60.0, IncidentClass.DIVERGENT, STOP),
    "dead": (nan_for(np.inf), IncidentClass.DEAD, STOP),
    "inf": (lambda t: 0 * t + np.inf, IncidentClass.DEAD, STOP),
}


@pytest.mark.parametrize("name", ROWS)
@everywhere
def test_each_row_of_the_table(name: str, noise: float, every: int) -> None:
    excess, named, kind = ROWS[name]
    incident, _ = draw(excess, noise, every).judged()
    assert incident.incident_class is named
    assert act(incident) is kind
    assert 0.5 <= incident.certainty <= 1
    assert incident.facts.records_before >= 58  # 60 records, less two


@everywhere
def test_on_its_way_back_it_is_recovering_and_the_time_that_is_left_is_about_right(
    noise: float, every: int
) -> None:
    incident, _ = draw(lambda t: 2.5 * np.exp(-t / 150), noise, every).judged(until=300 // every)
    level = incident.facts.level
    assert incident.incident_class is IncidentClass.RECOVERING
    assert act(incident) is WAIT
    assert level is not None
    assert level.course is Course.SHRINKING
    # 0.34 is left of 2.5; it is under 0.04, 2 % of the loss, after another 322 steps.
    assert level.back_in is not None
    assert 160 < level.back_in < 640


@everywhere
def test_a_loss_that_stands_still_is_dead(noise: float, every: int) -> None:
    drawn = draw(none, noise, every)
    loss = drawn.run.columns["loss"].values.copy()
    loss[drawn.row :] = loss[drawn.row]
    frozen = dataclasses.replace(drawn.run, columns={"loss": Column.complete(loss)})
    incident, _ = Drawn(frozen, drawn.row).judged(Symptom.FROZEN)
    assert incident.facts.is_frozen
    assert (incident.incident_class, act(incident)) == (IncidentClass.DEAD, STOP)


def test_a_rounded_loss_that_repeats_itself_as_it_always_did_is_not_dead() -> None:
    drawn = draw(none, noise=0.2)
    loss = np.round(drawn.run.columns["loss"].values, 1)
    rounded = dataclasses.replace(drawn.run, columns={"loss": Column.complete(loss)})
    incident, _ = Drawn(rounded, drawn.row).judged(Symptom.FROZEN)
    assert not incident.facts.is_frozen
    assert incident.incident_class is IncidentClass.SILENT


@pytest.mark.parametrize("count", [1, 2, 3, STANDSTILL_STEPS - 1])
@everywhere
def test_what_was_kept_out_is_nothing_else_at_any_record(
    count: int, noise: float, every: int
) -> None:
    steps = count * every

    def signals(since: Array) -> Signals:
        return {"discarded": ((since >= 0) & (since < steps)).astype(np.float64)}

    drawn = draw(nan_for(steps), noise, every, signals=signals)
    incident, changes = drawn.judged(Symptom.NONFINITE_LOSS)
    if drawn.row + count < len(drawn.run):
        assert classes(changes) == [IncidentClass.KEPT_OUT]
        assert incident.end is not None
        assert incident.end.tick == drawn.row + count - 1
    for until in sorted({1, 2, 3, 4, 8, count, count + 1, count + 5}):
        if drawn.row + until <= len(drawn.run):
            cut, _ = drawn.judged(Symptom.NONFINITE_LOSS, until=until)
            assert (cut.incident_class, act(cut)) == (IncidentClass.KEPT_OUT, WAIT)


@pytest.mark.parametrize("every", [1, 5])
def test_a_run_in_which_nothing_is_applied_any_more_stands_still(every: int) -> None:
    def signals(since: Array) -> Signals:
        return {"discarded": (since >= 0).astype(np.float64)}

    drawn = draw(nan_for(np.inf), every=every, signals=signals)
    incident, changes = drawn.judged(Symptom.NONFINITE_LOSS)
    assert classes(changes) == [IncidentClass.KEPT_OUT, IncidentClass.DEAD]
    assert act(incident) is STOP
    incident, _ = drawn.judged(Symptom.NONFINITE_LOSS, until=STANDSTILL_STEPS)
    assert "no update is applied" in instruct(incident, Surroundings()).instruction


@everywhere
def test_a_signal_that_the_loss_does_not_follow_is_silent(noise: float, every: int) -> None:
    incident, changes = draw(none, noise, every).judged(Symptom.STATE_RESET)
    assert classes(changes) == [IncidentClass.SILENT]
    assert act(incident) is WAIT


@everywhere
def test_a_run_that_does_not_learn_is_on_a_plateau(noise: float, every: int) -> None:
    incident, _ = draw(none, noise, every).judged(Symptom.NO_LEARNING)
    assert (incident.incident_class, act(incident)) == (IncidentClass.PLATEAU, STOP)


@pytest.mark.parametrize("is_gone", [True, False])
@everywhere
def test_a_policy_whose_reward_is_gone_has_collapsed_whatever_its_loss_does(
    is_gone: bool, noise: float, every: int
) -> None:
    def signals(since: Array) -> Signals:
        dice = np.random.default_rng(7)
        reward = 0.8 + 0.02 * noise * dice.normal(size=len(since))
        return {"reward": np.where((since >= 0) & is_gone, 0.05, reward)}

    for excess in (none, lambda t: 0 * t + 3.0):
        incident, _ = draw(excess, noise, every, signals=signals).judged(Symptom.REWARD_FELL)
        assert not incident.facts.is_measure
        assert (incident.incident_class is IncidentClass.COLLAPSED) is is_gone
        assert act(incident) is (STOP if is_gone else WAIT)


@pytest.mark.parametrize("count", [1, 2])
@everywhere
def test_one_or_two_nans_are_open_and_then_recovered(count: int, noise: float, every: int) -> None:
    drawn = draw(nan_for(count * every), noise, every)
    for until in range(1, count + 1):
        cut, _ = drawn.judged(Symptom.NONFINITE_LOSS, until=until)
        assert (cut.incident_class, act(cut)) == (IncidentClass.OPEN, WAIT)
    incident, changes = drawn.judged(Symptom.NONFINITE_LOSS)
    assert classes(changes) == [IncidentClass.OPEN, IncidentClass.RECOVERED]
    assert act(incident) is WAIT


@pytest.mark.parametrize("held_out", [0.0, 0.4])
@everywhere
def test_data_that_became_harder_is_recovered_where_the_evaluation_is_back(
    held_out: float, noise: float, every: int
) -> None:
    def signals(since: Array) -> Signals:
        dice = np.random.default_rng(7)
        evaluation = 2.1 + 0.005 * dice.normal(size=len(since)) + held_out * (since >= 0)
        is_due = np.arange(len(since)) % max(100 // every, 1) == 0
        return {"eval_loss": np.where(is_due, evaluation, -np.inf)}

    incident, _ = draw(lambda t: 0 * t + 0.4, noise, every, signals=signals).judged()
    named = IncidentClass.LINGERING if held_out else IncidentClass.RECOVERED
    assert (incident.incident_class, act(incident)) == (named, BACK if held_out else WAIT)
    evaluation = incident.facts.evaluation
    assert evaluation is not None
    assert evaluation.is_back is not bool(held_out)


def test_no_act_is_advised_in_the_first_64_records_of_a_rise_nor_withdrawn_on_a_level() -> None:
    for seed in range(12):
        drawn = draw(lambda t: 0.01 * t, seed=seed)
        _, changes = drawn.judged()
        said = [one for one in changes if one.incident.incident_class.is_severe]
        acts = [one for one in said if act(one.incident) is not WAIT]
        assert acts[0].incident.last.step - ONSET > LONG_RISE_RECORDS
        drawn = draw(lambda t: 0 * t + 0.2, seed=seed)
        incident, changes = drawn.judged()
        assert incident.incident_class is IncidentClass.LINGERING
        named = classes(changes)
        assert named[named.index(IncidentClass.LINGERING) :] == [IncidentClass.LINGERING]


@pytest.mark.parametrize("rows_before", range(13))
def test_few_records_before_make_no_sure_verdict_but_an_explosion_is_seen(rows_before: int) -> None:
    for excess, is_explosion in ((lambda t: 0 * t + 0.2, False), (lambda t: 0 * t + 60, True)):
        drawn = draw(excess)
        run = drawn.run[drawn.row - rows_before : drawn.row + 8]
        run = dataclasses.replace(run, tick=np.arange(len(run)))
        (incident,), _ = tracked(run, alarm(rows_before, step=ONSET))
        assert classify(incident.facts).incident_class is not IncidentClass.DEAD
        if not is_explosion:
            assert act(incident) is WAIT
        elif rows_before > 5:
            assert incident.incident_class is IncidentClass.DIVERGENT


def test_what_an_unsure_trend_promised_is_no_loss_of_what_was_learnt() -> None:
    """The trend of 14 records of a steep start, carried on for 240, expects what nobody knows."""
    start = [1.96, 1.969, 1.947, 1.93, 1.93, 1.916, 1.912, 1.903, 1.89, 1.89, 1.886, 1.877, 1.872]
    dice = np.random.default_rng(2)
    after = 1.98 + 0.02 * dice.normal(size=240)
    after[:20] = 1.85 + 0.01 * dice.normal(size=20)
    after[20:30] = np.linspace(7.0, 2.5, 10)
    losses = np.concatenate([start, [1.872], after])
    run = Block.from_columns({"loss": Column.complete(losses)}, step=30880 + np.arange(len(losses)))
    (incident,), _ = tracked(run, alarm(14, step=30894))
    assert incident.facts.level is not None
    assert incident.facts.level.gap < incident.facts.level.smallest
    assert incident.incident_class is not IncidentClass.DIVERGENT


def test_few_evaluations_that_fell_far_do_not_hide_a_level_that_stays_up() -> None:
    loss = 3.7 + np.random.default_rng(0).normal(0, 0.05, 700)
    loss[400:] += 0.8
    for later, expected in ((4.5, IncidentClass.LINGERING), (3.84, IncidentClass.RECOVERED)):
        held_out = np.full(700, np.nan)
        held_out[[0, 100, 200, 300]] = 6.25, 4.51, 3.9, 3.83
        held_out[[450, 550, 650]] = later
        report = diagnose({"loss": loss, "eval_loss": held_out})
        (found,) = report.incidents
        assert found.incident_class is expected
        is_back = expected is IncidentClass.RECOVERED
        assert ("held-out loss is where it was" in report.to_markdown()) is is_back


def test_a_spike_after_a_few_records_is_over_once_the_loss_is_under_the_start() -> None:
    loss = np.array([2.776, 2.773, 2.768, 7.344, 8.716, 7.654, 7.192, 6.849, 2.723, 2.636])
    for until, named in ((8, IncidentClass.OPEN), (10, IncidentClass.RECOVERED)):
        run = block_of({"loss": loss[:until]}, first_step=0)
        incidents, _ = tracked(run, alarm(5, onset=3))
        assert [one.incident_class for one in incidents] == [named]
        assert ("was 2.776 at the start" in instruct(incidents[0], Surroundings()).reason) is (
            named is IncidentClass.RECOVERED
        )
