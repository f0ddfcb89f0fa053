"""Trimtab's tree has a question for every symptom that a detector can raise an alarm for."""

import dataclasses
from collections.abc import Iterator

import pytest
from tests.synthetic import add_spike, block_of, diagnosis_of, falling_loss

from trimtab.core.causes import Cause, Standing
from trimtab.core.findings import Symptom
from trimtab.core.signals import Quality
from trimtab.diagnose.causes import hypotheses
from trimtab.diagnose.tree import trimtab_leaves as leaves
from trimtab.diagnose.tree.textbook import TEXTBOOK_TREE
from trimtab.diagnose.tree.trimtab import TRIMTAB_TREE
from trimtab.diagnose.tree.walk import Leaf
from trimtab.judge import Judge

NOT_NAMED = {
    # Questions 1 to 4 look at their signals.
    Symptom.NONFINITE_LOSS,
    Symptom.NONFINITE_GRAD_NORM,
    Symptom.NONFINITE_NORM,
    Symptom.LOSS_SPIKE,
    Symptom.GRADIENT_SPIKE,
    Symptom.UPDATE_SPIKE,
    Symptom.STALE_MOMENT,
    Symptom.LEVEL_SHIFT,
    Symptom.SCALE_COLLAPSE,
    Symptom.RISING_LOSS,  # only the textbook's
}


@pytest.mark.parametrize("symptom", sorted(set(Symptom) - NOT_NAMED))
def test_a_finding_that_names_its_cause_leads_to_it(symptom: Symptom) -> None:
    diagnosis = diagnosis_of(symptom)
    assert diagnosis.root_cause != leaves.UNEXPLAINED.root_cause


def test_similar_findings_lead_to_different_leaves() -> None:
    assert diagnosis_of(Symptom.STALL).root_cause == leaves.STALLED.root_cause
    assert diagnosis_of(Symptom.SLOW).root_cause == leaves.SLOWED.root_cause


def reachable() -> Iterator[Leaf]:
    for question in TRIMTAB_TREE.values():
        for end in (question.yes, question.no):
            if isinstance(end, Leaf):
                yield end


def test_every_leaf_can_be_reached() -> None:
    names = {name for name, leaf in vars(leaves).items() if isinstance(leaf, Leaf)}
    reached = {leaf.root_cause for leaf in reachable()}
    assert {name for name in names if getattr(leaves, name).root_cause not in reached} == set()


@pytest.mark.parametrize(
    ("symptom", "at_a_resume", "else_"),
    [
        (Symptom.STATE_LOST, leaves.STATE_LOST, leaves.CHANGED_MOMENTS),
        (Symptom.REPEATED_BATCH, leaves.WRONG_RESUME, leaves.REPEATED),
        (Symptom.NORM_DRIFT, leaves.WRONG_RESUME, leaves.DRIFTING),
    ],
)
def test_the_same_finding_means_something_else_at_a_resume(
    symptom: Symptom, at_a_resume: Leaf, else_: Leaf
) -> None:
    assert diagnosis_of(symptom, resumed=True).root_cause == at_a_resume.root_cause
    assert diagnosis_of(symptom).root_cause == else_.root_cause


def test_no_walk_asks_a_question_twice() -> None:
    def follow(here: str | Leaf, path: tuple[str, ...]) -> None:
        if isinstance(here, str):
            assert here not in path
            follow(TRIMTAB_TREE[here].yes, (*path, here))
            follow(TRIMTAB_TREE[here].no, (*path, here))

    follow("1.1", ())


NEVER_NAMED = {
    Cause.OUTPUT_LOGIT_DRIFT,
    Cause.BAD_DEVICE,
    Cause.REPLICAS_OUT_OF_SYNC,
    Cause.BATCH_SIZE_CHANGE,
    Cause.LOSS_REDUCTION_BUG,
}


def test_the_causes_that_cannot_be_named_are_the_documented_ones() -> None:
    ends = [
        end
        for tree in (TRIMTAB_TREE, TEXTBOOK_TREE)
        for question in tree.values()
        for end in (question.yes, question.no)
    ]
    by_tree = {end.cause for end in ends if isinstance(end, Leaf)}
    by_suspect = {
        suspect.cause
        for suspect in vars(hypotheses).values()
        if isinstance(suspect, hypotheses.Suspect)
    }
    assert set(Cause) - by_tree - by_suspect == NEVER_NAMED


@pytest.mark.parametrize("symptom", sorted(set(Symptom) - NOT_NAMED))
def test_the_cause_that_the_tree_names_is_the_first_hypothesis(symptom: Symptom) -> None:
    diagnosis = diagnosis_of(symptom)
    if diagnosis.cause is None:
        return
    causes = [item.cause for item in diagnosis.hypotheses]
    assert causes.count(diagnosis.cause) == 1
    if diagnosis.walk.leaf.is_explained:
        assert causes[0] is diagnosis.cause
        assert diagnosis.hypotheses[0].standing is Standing.SUPPORTED
        assert any(item.favors for item in diagnosis.hypotheses[0].evidence)


def test_the_confidence_of_a_finding_in_values_that_are_not_raw_is_shown() -> None:
    loss = add_spike(falling_loss(600), 300, height=5.0)
    raw = block_of({"loss": loss})
    smoothed = dataclasses.replace(raw, qualities={"loss": Quality.SMOOTHED})
    for run, is_raw in ((raw, True), (smoothed, False)):
        judge = Judge()
        judge.update(run)
        answers = judge.explain(judge.incidents[0], run).diagnosis.walk.answers
        seen = next(answer.result.observation for answer in answers if answer.id == "2.1")
        assert seen.endswith("(recorded as smoothed), confidence 60 %") is not is_raw
        assert ("confidence" in seen) is not is_raw
