"""The textbook's incidents and its advice: when one is over, its class, and the one action."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.kit.synthetic import Array, add_spike, block_of, falling_loss

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.findings import Symptom
from trimtab.core.incidents import Incident, IncidentChange, IncidentClass, Transition
from trimtab.judge import Judge
from trimtab.rulesets import TEXTBOOK


def judged(loss: Sequence[float] | Array, **signals: Array) -> tuple[Judge, list[IncidentChange]]:
    judge = Judge(rules=TEXTBOOK)
    run = block_of({"loss": np.array(loss), **signals}, first_step=0)
    return judge, [*judge.update(run).changes, *judge.finish().changes]


def incidents(loss: Sequence[float] | Array, **signals: Array) -> tuple[Incident, ...]:
    return judged(loss, **signals)[0].incidents


def steady(records: int) -> Array:
    """A loss with deviation 1 around 10 that never alarms by itself."""
    return 10.0 + np.tile([1.0, -1.0], records)[:records]


NAN = [np.nan] * 80


@pytest.mark.parametrize(
    ("then", "named", "end"),
    [
        # Until the first loss at or under 10 + 0.5 x 1.
        ([30.0, 20.0, 12.0, 10.4, *steady(100)], IncidentClass.RECOVERED, 203),
        ([np.nan, *steady(99)], IncidentClass.RECOVERED, 202),
        ([*(steady(400) + 15.0)], IncidentClass.LINGERING, 250),  # the new normal
        ([*(20.0 + np.arange(51.0))], IncidentClass.DIVERGENT, 250),
        (NAN, IncidentClass.DIVERGENT, None),
        ([np.nan], IncidentClass.DIVERGENT, None),
        ([*NAN, *steady(20)], IncidentClass.DIVERGENT, 280),
        ([40.0, 39.0], IncidentClass.OPEN, None),
    ],
)
def test_what_follows_an_alarm_decides_on_the_class_and_the_end(
    then: list[float], named: IncidentClass, end: int | None
) -> None:
    (incident,) = incidents([*steady(200), *then])
    assert incident.incident_class is named
    assert incident.onset.step == 200
    assert (None if incident.end is None else incident.end.step) == end
    assert incident.facts.level is None or incident.facts.level.before == pytest.approx(10.0)


def test_an_alarm_soon_after_the_end_reopens_and_a_later_one_is_a_new_incident() -> None:
    judge, seen = judged([*steady(200), 40.0, *steady(5), 60.0, *steady(60)])
    (incident,) = judge.incidents
    assert Transition.REOPENED in [change.transition for change in seen]
    assert incident.peak.step == 206
    later = incidents([*steady(200), 40.0, *steady(30), 80.0, *steady(60)])
    assert [incident.onset.step for incident in later] == [200, 231]


def test_a_new_symptom_worsens_the_incident() -> None:
    judge, seen = judged([*steady(200), 40.0, 50.0, np.nan, np.nan])
    worsened = [change for change in seen if change.transition is Transition.WORSENED]
    assert [change.tick for change in worsened] == [202]
    assert judge.incidents[0].symptoms == (Symptom.LOSS_SPIKE, Symptom.NONFINITE_LOSS)


def test_the_excursion_does_not_enter_the_baseline() -> None:
    loss = [*steady(200), 1000.0, 900.0, 10.0, *steady(30), np.nan, *steady(9)]
    level = incidents(loss)[-1].facts.level  # a NaN shows the baseline
    assert level is not None
    assert level.before == pytest.approx(10.0, abs=0.1)


def test_what_the_loss_does_not_follow_is_silent() -> None:
    rising = np.concatenate([falling_loss(150), 3.0 + 0.001 * np.arange(260.0)])
    assert IncidentClass.SILENT in [incident.incident_class for incident in incidents(rising)]
    norms = np.repeat([1.0, np.inf], 300)
    (silent,) = incidents(steady(600), param_norm=norms)
    assert silent.incident_class is IncidentClass.SILENT
    loss = steady(600)
    loss[300] = 10.9  # above mean + 0.5 sigma: the incident stays open
    loss[301:340] = 40.0
    assert incidents(loss, param_norm=norms)[0].incident_class is IncidentClass.RECOVERED


def test_an_alarm_at_a_record_without_loss_has_no_loss_not_nan() -> None:
    norm = block_of({"grad_norm": np.array([np.inf])}).columns
    last = Block.from_columns(norm, step=np.array([201]), tick=np.array([200]))
    judge = Judge(rules=TEXTBOOK)
    judge.update(Block.concat([block_of({"loss": steady(200)}), last]))
    assert judge.incidents[0].onset.loss is None


def test_a_nan_in_the_first_records_needs_no_baseline() -> None:
    (incident,) = incidents([np.nan, 5.0, 4.0])
    assert incident.facts.level is None
    assert incident.incident_class is IncidentClass.RECOVERED


def test_a_state_of_a_different_version_is_refused() -> None:
    state = Judge(Config(), TEXTBOOK).state_dict() | {"version": 99}
    with pytest.raises(Exception, match="start a new judge"):
        Judge(rules=TEXTBOOK).load_state_dict(state)


def calm(records: int) -> Array:
    return np.asarray(2.0 + np.tile([0.03, -0.03], records)[:records])


ONCE = add_spike(calm(400), 300)


@pytest.mark.parametrize(
    ("loss", "attempts", "kind"),
    [
        (ONCE, 1, ActionKind.WAIT),
        (np.concatenate([calm(300), calm(100) + 1.0]), 1, ActionKind.ROLL_BACK),
        (np.concatenate([calm(300), np.full(100, np.nan)]), 1, ActionKind.ROLL_BACK),
        (add_spike(calm(302), 300), 1, ActionKind.WAIT),  # too early
        (np.concatenate([ONCE, ONCE]), 2, ActionKind.LOWER_LR),  # at the same place again
        (add_spike(add_spike(calm(700), 300), 450), 1, ActionKind.WAIT),
    ],
)
def test_the_textbooks_action(loss: Array, attempts: int, kind: ActionKind) -> None:
    length = len(loss) // attempts
    run = Block.from_columns(
        block_of({"loss": loss}).columns,
        step=np.tile(np.arange(length), attempts),
        attempt=np.repeat(np.arange(attempts), length),
    )
    judge = Judge(rules=TEXTBOOK)
    judge.update(run)
    judge.finish()
    assert judge.explain(judge.incidents[-1], run).action.kind is kind
