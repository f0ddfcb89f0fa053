import json

import numpy as np
import pytest
from tests.kit.synthetic import add_spike, block_of, falling_loss

from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentChange, IncidentClass, Transition
from trimtab.judge import Judge
from trimtab.rulesets import TEXTBOOK


def judged(block: Block) -> tuple[list[IncidentChange], Judge]:
    judge = Judge(rules=TEXTBOOK)
    seen = [*judge.update(block).changes, *judge.finish().changes]
    return seen, judge


def steady(records: int) -> np.ndarray:
    """A loss with deviation 1 around 10 that never alarms by itself."""
    return 10.0 + np.tile([1.0, -1.0], records)[:records]


def test_a_spike_that_comes_back_is_recovered() -> None:
    loss = np.concatenate([steady(200), [30.0, 20.0, 12.0, 10.4], steady(100)])
    seen, judge = judged(block_of({"loss": loss}, first_step=0))
    (incident,) = judge.incidents
    assert [change.transition for change in seen] == [
        Transition.OPENED,
        Transition.CLASSIFIED,
        Transition.CLOSED,
    ]
    assert incident.incident_class is IncidentClass.RECOVERED
    assert (incident.onset.step, incident.peak.step) == (200, 200)
    assert incident.end is not None
    assert incident.end.step == 203  # the first loss at or under 10 + 0.5 x 1
    assert incident.facts.level is not None
    assert incident.facts.level.before == pytest.approx(10.0)


def test_a_level_that_stays_up_is_lingering_and_becomes_the_new_normal() -> None:
    loss = np.concatenate([steady(200), steady(400) + 15.0])
    _, judge = judged(block_of({"loss": loss}, first_step=0))
    (incident,) = judge.incidents
    assert incident.incident_class is IncidentClass.LINGERING
    assert incident.end is not None
    assert incident.end.step == 250


def test_a_loss_that_keeps_rising_is_divergent() -> None:
    loss = np.concatenate([steady(200), 20.0 + np.arange(51.0)])
    _, judge = judged(block_of({"loss": loss}, first_step=0))
    assert judge.incidents[0].incident_class is IncidentClass.DIVERGENT


def test_a_nan_that_stays_is_divergent_and_stays_open() -> None:
    loss = np.concatenate([steady(200), np.full(80, np.nan)])
    seen, judge = judged(block_of({"loss": loss}, first_step=0))
    (incident,) = judge.incidents
    assert incident.incident_class is IncidentClass.DIVERGENT
    assert incident.end is None
    assert [change.transition for change in seen] == [Transition.OPENED, Transition.CLASSIFIED]


def test_a_nan_that_stays_is_divergent_even_if_the_log_ends_at_once() -> None:
    loss = np.concatenate([steady(200), [np.nan]])
    _, judge = judged(block_of({"loss": loss}))
    assert judge.incidents[0].incident_class is IncidentClass.DIVERGENT


def test_a_divergent_incident_stays_divergent_when_finite_losses_return() -> None:
    loss = np.concatenate([steady(200), np.full(80, np.nan), steady(20)])
    _, judge = judged(block_of({"loss": loss}, first_step=0))
    (incident,) = judge.incidents
    assert incident.incident_class is IncidentClass.DIVERGENT
    assert incident.end is not None


def test_one_nan_among_good_losses_is_recovered() -> None:
    loss = steady(300)
    loss[250] = np.nan
    _, judge = judged(block_of({"loss": loss}, first_step=0))
    (incident,) = judge.incidents
    assert incident.incident_class is IncidentClass.RECOVERED
    assert incident.onset.step == 250


def test_a_log_that_ends_early_leaves_it_open() -> None:
    loss = np.concatenate([steady(200), [40.0, 39.0]])
    _, judge = judged(block_of({"loss": loss}))
    assert judge.incidents[0].incident_class is IncidentClass.OPEN
    assert judge.incidents[0].end is None


def test_an_alarm_soon_after_the_end_reopens() -> None:
    loss = np.concatenate([steady(200), [40.0], steady(5), [60.0], steady(60)])
    seen, judge = judged(block_of({"loss": loss}, first_step=0))
    assert len(judge.incidents) == 1
    assert Transition.REOPENED in [change.transition for change in seen]
    assert judge.incidents[0].peak.step == 206


def test_an_alarm_long_after_the_end_is_a_new_incident() -> None:
    loss = np.concatenate([steady(200), [40.0], steady(30), [80.0], steady(60)])
    _, judge = judged(block_of({"loss": loss}, first_step=0))
    assert [incident.onset.step for incident in judge.incidents] == [200, 231]


def test_a_new_symptom_worsens_the_incident() -> None:
    loss = np.concatenate([steady(200), [40.0, 50.0, np.nan, np.nan]])
    seen, judge = judged(block_of({"loss": loss}, first_step=0))
    worsened = [change for change in seen if change.transition is Transition.WORSENED]
    assert [change.tick for change in worsened] == [202]
    assert judge.incidents[0].symptoms == (Symptom.LOSS_SPIKE, Symptom.NONFINITE_LOSS)


def test_the_excursion_does_not_enter_the_baseline() -> None:
    loss = np.concatenate([steady(200), [1000.0, 900.0, 10.0], steady(30), [50.0], steady(9)])
    _, judge = judged(block_of({"loss": loss}, first_step=0))
    # The textbook's window does not see 50 after 1000; a NaN shows the baseline.
    loss[-10] = np.nan
    _, judge = judged(block_of({"loss": loss}, first_step=0))
    level = judge.incidents[-1].facts.level
    assert level is not None
    assert level.before == pytest.approx(10.0, abs=0.1)


def test_a_slow_rise_is_silent() -> None:
    loss = np.concatenate([falling_loss(150), 3.0 + 0.001 * np.arange(260.0)])
    _, judge = judged(block_of({"loss": loss}))
    assert IncidentClass.SILENT in [incident.incident_class for incident in judge.incidents]


def test_a_non_finite_norm_is_silent() -> None:
    norms = np.concatenate([np.ones(300), np.full(300, np.inf)])
    _, judge = judged(block_of({"loss": steady(600), "param_norm": norms}))
    assert judge.incidents[0].incident_class is IncidentClass.SILENT


def test_a_silent_incident_that_spikes_is_classified_by_its_loss() -> None:
    norms = np.concatenate([np.ones(300), np.full(300, np.inf)])
    loss = steady(600)
    loss[300] = 10.9  # above mean + 0.5 sigma: the incident stays open
    loss[301:340] = 40.0
    _, judge = judged(block_of({"loss": loss, "param_norm": norms}))
    assert judge.incidents[0].incident_class is IncidentClass.RECOVERED


def test_an_alarm_at_a_record_without_loss_has_no_loss_not_nan() -> None:
    block = Block.concat(
        [
            block_of({"loss": steady(200)}),
            Block.from_columns(
                block_of({"grad_norm": np.array([np.inf])}).columns,
                step=np.array([201]),
                tick=np.array([200]),
            ),
        ]
    )
    _, judge = judged(block)
    assert judge.incidents[0].onset.loss is None


def test_a_nan_in_the_first_records_needs_no_baseline() -> None:
    _, judge = judged(block_of({"loss": np.array([np.nan, 5.0, 4.0])}))
    (incident,) = judge.incidents
    assert incident.facts.level is None
    assert incident.incident_class is IncidentClass.RECOVERED


def test_state_survives_json_in_the_middle_of_an_incident() -> None:
    block = block_of({"loss": add_spike(falling_loss(400), 300)})
    whole = Judge(rules=TEXTBOOK)
    whole.update(block)
    first = Judge(rules=TEXTBOOK)
    first.update(block[:305])
    second = Judge(rules=TEXTBOOK)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.update(block[305:])
    assert second.incidents == whole.incidents


def test_a_state_of_a_different_version_is_refused() -> None:
    state = Judge(Config(), TEXTBOOK).state_dict()
    state["version"] = 99
    with pytest.raises(Exception, match="start a new judge"):
        Judge(rules=TEXTBOOK).load_state_dict(state)
