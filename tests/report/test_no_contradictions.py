"""Sections of a report are written from one result: class, cause, hypotheses and advice agree."""

import dataclasses
import random
import re
from functools import cache

import pytest
from tests.kit.synthetic import case_of, diagnosis_of, facts_of

from trimtab.core.actions import ActionKind
from trimtab.core.causes import Cause, Standing
from trimtab.core.findings import Symptom
from trimtab.core.incident_facts import Course, Facts
from trimtab.core.incidents import IncidentClass
from trimtab.explain.causes.by_evidence import conclude
from trimtab.explain.causes.plausible import Situation, base_rates
from trimtab.explain.causes.ranking import SUPPORTED, all_weights, rank
from trimtab.explain.causes.statements import say
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.explain.evidence.checks import Answers, Observed, ObservedOutcome
from trimtab.explain.verdict.instruction import Surroundings, instruct
from trimtab.explain.verdict.table import classify
from trimtab.report.wording import cause_text, certainty, short_cause

REPORTS = 2000

SYMPTOMS = (Symptom.LOSS_SPIKE, Symptom.NONFINITE_LOSS, Symptom.LEVEL_SHIFT, Symptom.NO_LEARNING)
SHARES = (0.05, 0.1, 0.25)
"""How many observations answer yes."""

OF_THE_INSTRUCTION = re.compile(r"(?i)\broll back\b|\bcheckpoint\b|start again|\bwait\b")
"""What a remedy does not speak of: it would be a second instruction."""


@cache
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
    made = random_facts(random_)
    found = classify(made)
    incident = dataclasses.replace(
        diagnosis.incident,
        incident_class=found.incident_class,
        certainty=found.certainty,
        facts=made,
    )
    ranking = rank(Answers(results), all_weights(), situation)
    conclusion, hypotheses = conclude(case_of(incident, Answers(results)), ranking)
    around = Surroundings(
        checkpoint=random_.choice((None, "checkpoint-250")),
        recurs=random_.random() < 0.1,
        changes=random_.choice(((), ("lr was changed from 0.001 to 0.002",))),
    )
    return dataclasses.replace(
        diagnosis,
        incident=incident,
        ranking=ranking,
        hypotheses=hypotheses,
        cause=conclusion.cause,
        root_cause=conclusion.root_cause,
        remedy=conclusion.remedy,
        lesson=conclusion.lesson,
        checkpoint=around.checkpoint,
        changes=tuple(around.changes),
        action=instruct(incident, around),
    )


def random_facts(random_: random.Random) -> Facts:
    """Return facts of a loss that is as high, for as long, and going on as chance has it."""
    facts = facts_of(random_.choice((0.0, 0.05, 0.3, 3.0)))
    level = facts.level
    assert level is not None
    course = random_.choice(list(Course)) if level.z > 1 else Course.FLAT
    back_in = random_.choice((40, 4000)) if course is Course.SHRINKING else None
    level = dataclasses.replace(level, course=course, back_in=back_in)
    is_short = random_.random() < 0.3
    return dataclasses.replace(
        facts,
        records=6 if is_short else 600,
        steps=6 if is_short else 600,
        records_before=random_.choice((3, 300)),
        level=random_.choice((None, level, level, level)),
        has_direction=random_.choice((True, True, False, None)),
        is_loud=random_.random() < 0.8,
        is_kept_out=random_.random() < 0.1,
        undone_updates=random_.choice((0, 0, 0, 12)),
        has_undo_failed=random_.random() < 0.1,
        has_collapsed=random_.random() < 0.05,
        is_frozen=random_.random() < 0.05,
        is_measure=random_.random() < 0.9,
        nonfinite_at_end=random_.choice((0, 0, 0, 1, 5)),
    )


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
        assert diagnosis.ranking is not None
        assert isinstance(cause, Cause)
        said_of = say(cause, case_of(diagnosis.incident, diagnosis.ranking.results))
        if not diagnosis.root_cause.startswith(said_of.root_cause):
            found.append("the root cause is that of another cause")
        if diagnosis.remedy != said_of.fix:
            found.append("the remedy is that of another cause")
        if OF_THE_INSTRUCTION.search(diagnosis.remedy):
            found.append("the remedy gives a second instruction")
    found += [
        f"{h.cause} supported"
        for h in ranked
        if h.standing is Standing.SUPPORTED and h.cause != cause
    ]
    found += instruction_contradictions(diagnosis)
    # One observation has one answer, whichever hypothesis it is shown under.
    for hypothesis in ranked:
        for item in hypothesis.evidence:
            if item.weight is None:  # a base rate, which no observation supports
                found += ["a base rate counts as evidence"] if item.favors else []
                continue
            is_yes = diagnosis.ranking is not None and diagnosis.ranking.results[item.signal].is_yes
            if (": no (" in item.observation) is is_yes:
                found.append(f"{item.signal} is shown as what it is not")
    return found


def instruction_contradictions(diagnosis: Diagnosis) -> list[str]:
    """Return where the instruction does not agree with the class, or with what is known."""
    found = []
    named, facts, action = diagnosis.incident_class, diagnosis.incident.facts, diagnosis.action
    instruction = action.instruction
    acts = action.kind is not ActionKind.WAIT
    recurs = "same place" in action.reason
    if acts and not named.is_severe and not recurs:
        found.append(f"acts on an incident that is {named}")
    if acts is not bool(re.match(r"Stop|Roll back|Go on from", instruction)):
        found.append("the kind of the action is not that of its sentence")
    if acts and diagnosis.checkpoint and diagnosis.checkpoint not in instruction:
        found.append("a checkpoint is known and not named")
    if "back in about" in instruction and named is not IncidentClass.RECOVERING:
        found.append("waits for a return that is not on its way")
    if "above its trend" in action.reason.casefold():
        level = facts.level
        if level is None or level.gap <= 0:
            found.append("above a trend that it is not above")
    if named in (IncidentClass.DEAD, IncidentClass.COLLAPSED) and not acts:
        found.append("waits for what does not come back")
    return found


@pytest.mark.parametrize("count", [100, pytest.param(REPORTS, marks=pytest.mark.slow)])
def test_no_report_contradicts_itself(count: int) -> None:
    wrong = {seed: said for seed in range(count) if (said := contradictions(generated(seed)))}
    assert wrong == {}


def test_what_this_run_cannot_have_is_in_no_hypothesis() -> None:
    for seed in range(50):
        diagnosis = generated(seed)
        assert diagnosis.ranking is not None
        shown = {h.cause for h in diagnosis.hypotheses if h.standing is not Standing.RULED_OUT}
        assert shown <= {c.cause for c in diagnosis.ranking.candidates}
