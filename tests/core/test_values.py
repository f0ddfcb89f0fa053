"""The small values of the house: causes, qualities, incidents, JSON."""

import dataclasses
import json
import math

import numpy as np
import pytest
from tests.kit.synthetic import facts_of

from trimtab.core import errors
from trimtab.core.causes import Cause
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incident_facts import Evaluation, Facts, Reward, Schedule
from trimtab.core.incidents import Incident, IncidentClass, Moment
from trimtab.core.jsonable import number_from_json, to_jsonable
from trimtab.core.signals import Quality


def test_the_catalogue_has_stable_ids() -> None:
    ids = [f"F{n:02d}" for n in range(1, 25)] + [f"R{n:02d}" for n in range(1, 13)]
    assert [cause.id for cause in Cause] == ids
    assert len({cause.title for cause in Cause}) == len(ids)


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = errors.__doc__ or ""
    own = [value for value in vars(errors).values() if isinstance(value, type)]
    for error in own:
        assert issubclass(error, errors.TrimtabError)
        assert error.__name__ in drawn


@pytest.mark.parametrize("quality", list(Quality))
def test_a_quality_survives_its_label(quality: Quality) -> None:
    assert Quality.parse(quality.label) is quality


def test_a_word_that_is_no_quality_is_reported() -> None:
    with pytest.raises(ValueError, match="'rough' is not a quality"):
        Quality.parse("rough")


@pytest.mark.parametrize("value", [1.5, math.inf, -math.inf, 0.0])
def test_a_number_survives_json(value: float) -> None:
    assert number_from_json(json.loads(json.dumps(to_jsonable(value), allow_nan=False))) == value


def test_nan_survives_json_and_null_stays_nothing() -> None:
    assert math.isnan(number_from_json(to_jsonable(math.nan)) or 0.0)
    assert number_from_json(None) is None
    assert number_from_json("fast") is None
    assert number_from_json(True) is None


def test_integers_too_large_for_a_float_are_infinite_not_an_error() -> None:
    assert number_from_json(10**400) == math.inf
    assert number_from_json(-(10**400)) == -math.inf


def test_values_of_the_house_become_json() -> None:
    told = to_jsonable(
        {
            "cause": Cause.RARE_TOKENS,
            "severity": Severity.ALARM,
            "class": IncidentClass.SILENT,
            "scalar": np.float32(1.5),
            "count": np.int64(3),
            "set": {1},
            "other": complex(1, 2),
        }
    )
    assert told == {
        "cause": "F02",
        "severity": "alarm",
        "class": "silent",
        "scalar": 1.5,
        "count": 3,
        "set": [1],
        "other": "(1+2j)",
    }


@pytest.mark.parametrize(
    "facts",
    [
        Facts(),
        facts_of(
            gap=0.5,
            reward=Reward(before=0.9, now=0.1, is_gone=True),
            evaluation=Evaluation(before=2.1, now=2.6, is_above=True, is_back=False),
            schedule=Schedule(before=3e-4, now=1e-4, steps_left=90, has_ended=False),
        ),
    ],
)
def test_an_incident_survives_serialisation(facts: Facts) -> None:
    finding = Finding(
        detector="d",
        symptom=Symptom.LOSS_SPIKE,
        severity=Severity.ALARM,
        signal="loss",
        step=3,
        tick=2,
        value=9.0,
    )
    moment = Moment(step=3, tick=2, loss=None)
    incident = Incident(
        number=1,
        onset=moment,
        peak=moment,
        end=moment,
        last=moment,
        records=0,
        incident_class=IncidentClass.LINGERING,
        certainty=0.9,
        facts=facts,
        findings=(finding,),
        num_findings=1,
    )
    state = json.loads(json.dumps(dataclasses.asdict(incident)))
    assert Incident.from_state(state) == incident
    assert incident.symptoms == (Symptom.LOSS_SPIKE,)
