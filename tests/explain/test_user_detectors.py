"""Detectors of users run beside ours: their symptoms, explanations and incidents."""

import dataclasses
import json

import numpy as np
import pytest
from tests.kit.synthetic import block_of, falling_loss

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, Column, Record
from trimtab.core.causes import Cause, Standing, UserCause
from trimtab.core.detector import Detector
from trimtab.core.findings import Explanation, Finding, Severity, Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.core.jsonable import to_jsonable
from trimtab.core.run import RunFacts
from trimtab.explain.diagnosis import Diagnosis
from trimtab.judge import Judge
from trimtab.rulesets import RULE_SETS, TEXTBOOK, TRIMTAB

HOT = Explanation(
    cause_id="ACME-7", cause_title="overheated GPU", remedy="Replace the fan of the node."
)


class Temperature(Detector):
    """Alarms when a GPU gets hot."""

    name = "temperature"
    not_saved = ("_explanation",)

    def __init__(self, explanation: Explanation | None = None) -> None:
        self._explanation = explanation
        self.was_hot = False

    def update(self, record: Record) -> list[Finding]:
        value = record.signals.get("gpu_celsius", 0.0)
        is_new = value > 90 and not self.was_hot
        self.was_hot = value > 90
        if not is_new:
            return []
        return [
            Finding(
                detector=self.name,
                symptom="GPU too hot",
                severity=Severity.ALARM,
                signal="gpu_celsius",
                step=record.step,
                tick=record.tick,
                value=value,
                explanation=self._explanation,
            )
        ]


def hot_run(*, spike: float = 0.0) -> Block:
    """A GPU gets hot at step 301; the loss may jump in the same record."""
    celsius = np.full(600, 60.0)
    celsius[300:310] = 95.0
    loss = falling_loss(600)
    loss[300:320] += spike
    return block_of({"loss": loss, "gpu_celsius": celsius})


def explained(run: Block, explanation: Explanation | None, rules: str) -> Diagnosis:
    judge = Judge(rules=rules, detectors=[Temperature(explanation)])
    judge.update(run)
    judge.finish()
    incident = next(i for i in judge.incidents if "GPU too hot" in i.symptoms)
    return judge.explain(incident, run)


@pytest.mark.parametrize("rules", RULE_SETS)
def test_the_explanation_of_an_opening_finding_is_the_diagnosis(rules: str) -> None:
    diagnosis = explained(hot_run(), HOT, rules)
    assert diagnosis.cause == UserCause(id="ACME-7", title="overheated GPU")
    assert diagnosis.remedy == HOT.remedy
    assert "found by detector temperature" in diagnosis.root_cause
    assert diagnosis.hypotheses[0].cause == diagnosis.cause
    assert diagnosis.hypotheses[0].standing is Standing.SUPPORTED


def test_the_class_of_a_users_incident_is_that_of_the_state_machine() -> None:
    quiet = explained(hot_run(), HOT, "trimtab")
    assert quiet.incident_class is IncidentClass.SILENT
    loud = explained(hot_run(spike=3.0), HOT, "trimtab")
    assert loud.incident_class is IncidentClass.RECOVERED
    assert loud.cause == UserCause(id="ACME-7", title="overheated GPU")


@pytest.mark.parametrize("rules", RULE_SETS)
def test_an_alarm_without_an_explanation_names_the_detector_and_no_cause(rules: str) -> None:
    diagnosis = explained(hot_run(), None, rules)
    assert diagnosis.cause is None
    assert diagnosis.root_cause == "Not known: GPU too hot, reported by temperature."
    assert "gpu_celsius is 95 at step 301" in diagnosis.remedy


@pytest.mark.parametrize("explanation", [None, HOT])
def test_an_alarm_that_the_loss_does_not_follow_is_no_reason_to_roll_back(
    explanation: Explanation | None,
) -> None:
    action = explained(hot_run(), explanation, "trimtab").action
    assert action.kind is ActionKind.WAIT
    assert action.instruction == "Look at gpu_celsius; act if the loss follows."


def test_an_explanation_may_name_a_cause_of_the_catalogue() -> None:
    known = Explanation(cause_id="F14", cause_title="", remedy="Replace the device.")
    assert explained(hot_run(), known, "trimtab").cause is Cause.BAD_DEVICE


def test_a_later_explanation_is_used_unless_the_evidence_is_sure() -> None:
    run = hot_run(spike=3.0)
    judge = Judge(detectors=[Temperature(HOT)])
    judge.update(run)
    (incident,) = judge.incidents
    users, ours = incident.findings[0], incident.findings[-1]
    assert (ours.symptom, users.symptom) == (Symptom.LOSS_SPIKE, "GPU too hot")
    later = dataclasses.replace(users, tick=users.tick + 2)
    open_end = dataclasses.replace(incident, findings=(ours, later))
    assert judge.explain(open_end, run).cause == UserCause(id="ACME-7", title="overheated GPU")
    is_after = np.arange(len(run)) >= 300
    signals = {"lr": np.where(is_after, 2e-2, 1e-3)}
    for group in ("attention", "mlp", "embedding"):  # large updates move all weights
        signals[f"param_norm/{group}"] = 10 * np.exp(0.01 * np.cumsum(is_after))
    columns = {name: Column.complete(values) for name, values in signals.items()}
    sure = dataclasses.replace(run, columns={**run.columns, **columns})
    jump = dataclasses.replace(ours, symptom=Symptom.LR_JUMP)
    decided = dataclasses.replace(incident, findings=(jump, later))
    diagnosis = judge.explain(decided, sure, RunFacts(dtype="fp32", ranks=1))
    assert diagnosis.cause is Cause.LR_DISCONTINUITY
    assert "ACME-7" in {item.cause.id for item in diagnosis.hypotheses if item.cause}


def test_a_users_finding_survives_saving_and_loading_in_the_middle_of_its_incident() -> None:
    run = hot_run()
    whole = Judge(detectors=[Temperature(HOT)])
    whole.update(run)
    first = Judge(detectors=[Temperature(HOT)])
    first.update(run[:305])
    second = Judge(detectors=[Temperature(HOT)])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.update(run[305:])
    assert second.incidents == whole.incidents
    (finding,) = second.incidents[0].findings
    assert finding.explanation == HOT
    assert type(finding.symptom) is str


def test_a_users_cause_is_written_as_json() -> None:
    report = explained(hot_run(), HOT, "trimtab")
    written = json.loads(json.dumps(to_jsonable(report)))
    assert written["cause"] == {"id": "ACME-7", "title": "overheated GPU"}
    (finding,) = written["incident"]["findings"]
    assert finding["explanation"]["remedy"] == HOT.remedy


def test_a_variant_of_a_rule_set_is_one_replacement() -> None:
    only_users = dataclasses.replace(
        TRIMTAB, name="mine", make_detectors=lambda config: [Temperature(HOT)]
    )
    judge = Judge(rules=only_users)
    judge.update(hot_run(spike=3.0))
    assert [incident.symptoms for incident in judge.incidents] == [("GPU too hot",)]
    assert judge.rules.name == "mine"
    assert TEXTBOOK is RULE_SETS["textbook"]
