"""Synthetic runs for tests: small, seeded, with faults added on purpose."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import Block, Column, Event
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incident_facts import Course, Facts, Level
from trimtab.core.incidents import Incident, IncidentClass, Moment
from trimtab.core.run import RunFacts
from trimtab.explain.causes.by_evidence import explain_by_evidence
from trimtab.explain.causes.ranking import Ranking, all_weights, rank
from trimtab.explain.causes.statements import Case
from trimtab.explain.context import IncidentContext
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.checks import Answers, Observed, ObservedOutcome
from trimtab.judge import Judge

Array = NDArray[np.float64]


def falling_loss(records: int, *, seed: int = 0, noise: float = 0.03) -> Array:
    """A healthy loss: falls, with Gaussian noise."""
    steps = np.arange(records)
    noise_values = np.random.default_rng(seed).normal(0.0, noise, records)
    return np.asarray(2.0 + 2.0 * np.exp(-steps / 200) + noise_values)


def add_spike(loss: Array, at: int, *, height: float = 2.5, decay: float = 6.0) -> Array:
    """The loss with a spike that jumps at a row and decays."""
    after = np.arange(len(loss) - at)
    spiked = loss.copy()
    spiked[at:] += height * np.exp(-after / decay)
    return spiked


def block_of(signals: Mapping[str, Array], *, first_step: int = 1) -> Block:
    """A plain run: one record per step, every signal complete."""
    length = len(next(iter(signals.values())))
    columns = {name: Column.complete(values) for name, values in signals.items()}
    return Block.from_columns(columns, step=np.arange(first_step, first_step + length))


def troubled_run() -> Block:
    """1,200 steps with a spike at step 600 and a NaN from step 900 on."""
    loss = add_spike(falling_loss(1200), 599)
    norm = np.random.default_rng(1).normal(0.5, 0.05, 1200)
    norm[599] = 22.0
    loss[899:] = np.nan
    norm[899:] = np.nan
    return block_of({"loss": loss, "grad_norm": norm, "lr": np.full(1200, 3e-4)})


def incident_of(
    onset: Moment,
    *,
    number: int = 1,
    end: Moment | None = None,
    last: Moment | None = None,
    records: int = 1,
    incident_class: IncidentClass = IncidentClass.OPEN,
    certainty: float = 0.9,
    facts: Facts | None = None,
    findings: tuple[Finding, ...] = (),
) -> Incident:
    """An incident that begins and peaks at this moment, of a loss of 2.0 +- 0.03 that is back."""
    return Incident(
        number=number,
        onset=onset,
        peak=onset,
        end=end,
        last=last or onset,
        records=records,
        incident_class=incident_class,
        certainty=certainty,
        facts=facts or facts_of(),
        findings=findings,
        num_findings=len(findings),
    )


def level_of(gap: float = 0.0, **facts: Any) -> Level:
    """A level of a loss of 2.0 +- 0.03 that is this much higher now, and stays there."""
    usual = {
        "before": 2.0,
        "expected": 2.0,
        "now": 2.0 + gap,
        "gap": gap,
        "smallest": 0.07,
        "noise": 0.03,
        "z": 1.0 + (gap - 0.04) / 0.01 if gap > 0.04 else 0.0,
        "course": Course.FLAT,
        "back_in": None,
        "rise_steps": 0,
        "return_excluded": gap > 0.07,
        "is_back_just_now": False,
        "is_doubled": gap > 2.0,
        "is_learning": False,
        "lost": gap / 2.0,
    }
    return Level(**{**usual, **facts})


def facts_of(gap: float = 0.0, **facts: Any) -> Facts:
    """Facts, 600 records after the onset, of a loss that is this much higher than before."""
    usual = {
        "records_before": 300,
        "records": 600,
        "steps": 600,
        "has_direction": True,
        "start_loss": 4.0,
        "times_start": (2.0 + gap) / 4.0,
        "level": level_of(gap),
    }
    return Facts(**{**usual, **facts})


def explained(run: Block, facts: RunFacts | None = None, rules: str = "trimtab") -> list[Diagnosis]:
    """Every incident of a run, explained at its end."""
    judge = Judge(rules=rules)
    judge.update(run)
    judge.finish()
    return [judge.explain(incident, run, facts) for incident in judge.incidents]


def diagnosis_of(symptom: Symptom, *, resumed: bool = False) -> Diagnosis:
    """The diagnosis of an incident with one finding in a healthy run, maybe at a resume."""
    block = block_of({"loss": falling_loss(400)})
    if resumed:
        event = Event(kind="resume", tick=299, step=300)
        block = dataclasses.replace(block, events=(event,))
    moment = Moment(step=300, tick=299, loss=2.0)
    finding = Finding(
        detector="test",
        symptom=symptom,
        severity=Severity.ALARM,
        signal="loss",
        step=300,
        tick=299,
        value=2.0,
    )
    incident = incident_of(moment, incident_class=IncidentClass.SILENT, findings=(finding,))
    return explain_by_evidence(IncidentContext.of(incident, block, RunFacts()))


def case_of(incident: Incident, answers: Answers) -> Case:
    """The case of an incident in a healthy run, with these answers."""
    block = block_of({"loss": falling_loss(400)})
    return Case(context=IncidentContext.of(incident, block, RunFacts()), answers=answers)


def ranked(**answers: ObservedOutcome) -> Ranking:
    """Return the causes, ranked by these answers to checks alone."""
    results = {
        name: Observed(signal="", outcome=outcome, observation="")
        for name, outcome in answers.items()
    }
    return rank(Answers(results), all_weights())
