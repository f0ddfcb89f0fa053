"""Sections of a report are written from one result: class, cause, hypotheses and advice agree."""

import dataclasses
import random
import re

import pytest
from tests.kit.synthetic import diagnosis_of

from trimtab.core.causes import Cause, Standing
from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.decide.advice import SKIPPABLE, advise
from trimtab.explain.causes.by_evidence import conclude
from trimtab.explain.causes.conclusions import CONCLUSIONS
from trimtab.explain.causes.plausible import Situation, base_rates
from trimtab.explain.causes.ranking import SUPPORTED, all_weights, rank
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.explain.evidence.checks import Answers, Observed, ObservedOutcome
from trimtab.report.wording import cause_text, certainty, short_cause

REPORTS = 2000

SYMPTOMS = (Symptom.LOSS_SPIKE, Symptom.NONFINITE_LOSS, Symptom.LEVEL_SHIFT, Symptom.NO_LEARNING)
SHARES = (0.05, 0.1, 0.25)
"""How many observations answer yes."""


def generated(seed: int) -> Diagnosis:
    """Return a diagnosis with random answers, in a random situation."""
    random_ = random.Random(seed)
    share = random_.choice(SHARES)
    results = {}
    for id in ALL_OBSERVATIONS:
        is_yes = random_.random() < share
        missing = random_.random() < 0.3
        outcome = ObservedOutcome.YES if is_yes else ObservedOutcome.NO
        outcome = ObservedOutcome.NOT_RECORDED if missing else outcome
        results[id] = Observed(signal=id, outcome=outcome, observation=f"seen {id}")
    situation = Situation(
        shape=random_.choice(list(base_rates()["shapes"])),
        kind=random_.choice([None, *base_rates()["kinds"]]),
        impossible=frozenset(random_.sample(list(Cause), random_.randrange(12))),
        has_own_signals=random_.random() < 0.5,
    )
    diagnosis = diagnosis_of(random_.choice(SYMPTOMS))
    step = random_.choice((1, 58, 300, 20_000))
    incident = dataclasses.replace(
        diagnosis.incident,
        onset=dataclasses.replace(diagnosis.incident.onset, step=step),
        incident_class=random_.choice(list(IncidentClass)),
    )
    ranking = rank(Answers(results), all_weights(), situation)
    conclusion, hypotheses = conclude(incident, ranking)
    made = dataclasses.replace(
        diagnosis,
        incident=incident,
        incident_class=incident.incident_class,
        ranking=ranking,
        hypotheses=hypotheses,
        cause=conclusion.cause,
        root_cause=conclusion.root_cause,
        remedy=conclusion.remedy,
        lesson=conclusion.lesson,
    )
    return dataclasses.replace(made, action=advise(made, recurs=False))


def contradictions(diagnosis: Diagnosis) -> list[str]:
    """Return what does not agree within one report."""
    found = []
    ranked = [h for h in diagnosis.hypotheses if h.probability is not None and h.cause is not None]
    likely = [h for h in ranked if (h.probability or 0) >= SUPPORTED]
    cause, said = diagnosis.cause, certainty(diagnosis)
    if cause is None:
        found += [f"{h.cause} is likely and not named" for h in likely]
        if re.search(r"over 90 %|about [6-9]0 %", cause_text(diagnosis) + short_cause(diagnosis)):
            found.append("certain of nothing")
    else:
        if said is None or said < SUPPORTED or ranked[0].cause != cause:
            found.append("the named cause is not the first hypothesis")
        if not diagnosis.root_cause.startswith(CONCLUSIONS[cause].root_cause):
            found.append("the root cause is that of another cause")
        if diagnosis.remedy != CONCLUSIONS[cause].remedy:
            found.append("the remedy is that of another cause")
        if "skip" in diagnosis.action.instruction and cause not in SKIPPABLE:
            found.append("skips batches of a cause that goes on")
    found += [
        f"{h.cause} supported"
        for h in ranked
        if h.standing is Standing.SUPPORTED and h.cause != cause
    ]
    is_young = diagnosis.incident.onset.step <= 200
    if is_young and "checkpoint older" in diagnosis.action.instruction:
        found.append("a checkpoint that cannot exist")
    # One observation has one answer, whichever hypothesis it is shown under.
    for hypothesis in ranked:
        for item in hypothesis.evidence:
            if item.weight is None:  # a base rate, which no observation supports
                found += ["a base rate counts as evidence"] if item.favors else []
                continue
            is_yes = diagnosis.ranking is not None and diagnosis.ranking.results[item.signal].is_yes
            if item.observation.startswith("not so") is is_yes:
                found.append(f"{item.signal} is shown as what it is not")
    return found


@pytest.mark.parametrize("count", [100, pytest.param(REPORTS, marks=pytest.mark.slow)])
def test_no_report_contradicts_itself(count: int) -> None:
    wrong = {seed: said for seed in range(count) if (said := contradictions(generated(seed)))}
    assert wrong == {}


def test_what_this_run_cannot_have_is_in_no_hypothesis() -> None:
    for seed in range(50):
        diagnosis = generated(seed)
        assert diagnosis.ranking is not None
        shown = {h.cause for h in diagnosis.hypotheses}
        assert shown <= {c.cause for c in diagnosis.ranking.candidates}
