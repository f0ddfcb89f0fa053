"""The verdict on a checkpoint follows from the judged run, and from nothing else."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.kit.synthetic import incident_of

from trimtab.core.block import Block, Record
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident, IncidentClass, Moment
from trimtab.journal.checkpoints.index import CheckpointEntry, Verdict, mark_given_up
from trimtab.journal.checkpoints.manifest import CheckpointFacts
from trimtab.observe.checkpoint_verdicts import RunHistory, judge_checkpoint


def entry(step: int, *, attempt: int = 0, **more: Any) -> CheckpointEntry:
    facts = CheckpointFacts(
        step=step,
        data_position=step,
        attempt=attempt,
        world=1,
        num_bytes=10,
        fault=more.pop("fault", ""),
    )
    return CheckpointEntry(folder=f"step-{step:08d}", facts=facts, **more)


def block_of(*attempts: tuple[int, int], norms: dict[int, float] | None = None) -> Block:
    """The records of attempts from a first to a last step; norms by tick."""
    records: list[Record] = []
    for number, (first, last) in enumerate(attempts):
        for step in range(first, last + 1):
            signals = {"loss": 2.0}
            if norms and len(records) in norms:
                signals["param_norm"] = norms[len(records)]
            records.append(Record(step=step, tick=len(records), attempt=number, signals=signals))
    return Block.from_records(records)


def history(*attempts: tuple[int, int], norms: dict[int, float] | None = None) -> RunHistory:
    made = RunHistory()
    made.update(block_of(*attempts, norms=norms))
    return made


def incident(
    onset: int,
    end: int | None,
    incident_class: IncidentClass,
    symptoms: Sequence[str] = (Symptom.LOSS_SPIKE,),
    steps: Sequence[int] = (),
) -> Incident:
    """An incident whose symptoms came at `steps`, or all at the onset."""
    start = Moment(step=onset, tick=onset, loss=5.0)
    findings = tuple(
        Finding(
            detector="test",
            symptom=symptom,
            severity=Severity.ALARM,
            signal="loss",
            step=step,
            tick=step,
            value=5.0,
        )
        for symptom, step in zip(symptoms, steps or [onset] * len(symptoms), strict=True)
    )
    return incident_of(
        start,
        end=None if end is None else Moment(step=end, tick=start.tick + end - onset, loss=2.0),
        incident_class=incident_class,
        findings=findings,
    )


def judge(checkpoint: CheckpointEntry, run: RunHistory, *incidents: Incident) -> CheckpointEntry:
    return judge_checkpoint(checkpoint, run, incidents)


LINGERING, DIVERGENT = IncidentClass.LINGERING, IncidentClass.DIVERGENT
SILENT, RECOVERED, OPEN = IncidentClass.SILENT, IncidentClass.RECOVERED, IncidentClass.OPEN


def test_a_hundred_healthy_steps_prove_a_checkpoint() -> None:
    early = judge(entry(200), history((0, 298)))
    assert (early.verdict, early.in_doubt) == (Verdict.UNPROVEN, False)
    assert early.reason == "99 of the 100 healthy steps that prove it"
    assert judge(entry(200), history((0, 299))).verdict is Verdict.PROVEN


def test_steps_in_an_incident_are_not_healthy() -> None:
    passed = incident(230, 249, RECOVERED)
    assert judge(entry(200), history((0, 318)), passed).verdict is Verdict.UNPROVEN
    assert judge(entry(200), history((0, 319)), passed).verdict is Verdict.PROVEN
    diverging = incident(250, None, DIVERGENT)
    far = judge(entry(200), history((0, 900)), diverging)
    assert (far.verdict, far.in_doubt) == (Verdict.UNPROVEN, False)


@pytest.mark.parametrize(
    ("found", "verdict", "in_doubt"),
    [
        (incident(150, None, OPEN), Verdict.UNPROVEN, True),
        (incident(150, None, IncidentClass.RECOVERING), Verdict.UNPROVEN, True),
        (incident(150, None, DIVERGENT), Verdict.BAD, False),
        (incident(150, 260, LINGERING), Verdict.BAD, False),
        (incident(150, 199, LINGERING), Verdict.PROVEN, False),  # over before it was saved
        (incident(150, 199, DIVERGENT), Verdict.BAD, False),  # never undone by waiting
        (incident(150, 199, IncidentClass.DEAD), Verdict.BAD, False),
        (incident(150, 199, IncidentClass.COLLAPSED), Verdict.BAD, False),
        (incident(150, 260, SILENT, [Symptom.NORM_DRIFT]), Verdict.BAD, False),
        (incident(150, 260, SILENT, [Symptom.STATE_RESET]), Verdict.PROVEN, False),
        (incident(150, 260, SILENT, [Symptom.GRADIENT_SPIKE]), Verdict.PROVEN, False),
        (incident(150, 260, SILENT, [Symptom.SLOW, Symptom.STALL]), Verdict.PROVEN, False),
        (incident(150, None, SILENT, [Symptom.SLOW]), Verdict.PROVEN, False),
        (incident(150, 260, RECOVERED), Verdict.PROVEN, False),
        (incident(150, 260, IncidentClass.RESTORED), Verdict.PROVEN, False),
        (incident(150, 151, IncidentClass.KEPT_OUT), Verdict.PROVEN, False),
        (incident(205, None, OPEN), Verdict.UNPROVEN, True),  # onsets are dated late
        (incident(205, 300, LINGERING), Verdict.UNPROVEN, True),
        (incident(208, 300, LINGERING), Verdict.PROVEN, False),
    ],
)
def test_an_incident_decides_by_its_class_its_symptoms_and_its_dates(
    found: Incident, verdict: Verdict, in_doubt: bool
) -> None:
    judged = judge(entry(200), history((0, 450)), found)
    assert (judged.verdict, judged.in_doubt) == (verdict, in_doubt), judged.reason


def test_an_incident_that_opened_with_a_slow_step_counts_from_its_first_harm_on() -> None:
    symptoms = [Symptom.STALL, Symptom.NONFINITE_LOSS]
    harm = incident(50, None, DIVERGENT, symptoms, steps=[50, 180])
    run = history((0, 450))
    assert judge(entry(60), run, harm).verdict is Verdict.PROVEN
    bad = judge(entry(200), run, harm)
    assert bad.reason == "saved in incident 1 (divergent, non-finite loss, onset at step 180)"


def test_the_reason_names_the_incident() -> None:
    judged = judge(entry(200), history((0, 450)), incident(150, 260, LINGERING))
    assert judged.reason == "saved in incident 1 (lingering, loss spike, onset at step 150)"


def test_damage_and_values_that_are_not_finite_are_bad_whatever_the_run_says() -> None:
    run = history((0, 900))
    assert judge(entry(200, damage="x.distcp is gone"), run).reason == "x.distcp is gone"
    assert judge(entry(200, fault="2 tensors are not finite"), run).verdict is Verdict.BAD


def test_norms_of_the_same_step_decide_until_they_are_finite_again() -> None:
    run = history((0, 600), norms={190: 1.0, 199: np.nan, 209: np.inf, 219: 1.0})
    assert judge(entry(199), run).verdict is Verdict.PROVEN
    bad = judge(entry(200), run)
    assert bad.verdict is Verdict.BAD
    assert bad.reason == "weights or optimizer state were not finite at step 199"
    assert judge(entry(215), run).verdict is Verdict.BAD
    assert judge(entry(220), run).verdict is Verdict.PROVEN


def test_an_attempt_that_was_given_up_does_not_concern_the_next_one() -> None:
    # Diverged from 150 on, went back to 100, and trained to 400.
    run = history((0, 220), (100, 400))
    harm = incident(150, None, DIVERGENT)
    assert judge(entry(200), run, harm).verdict is Verdict.BAD
    assert judge(entry(200, attempt=1), run, harm).verdict is Verdict.PROVEN
    # Whatever the first one saved after step 100: the run does not go on from it.
    given_up = judge(entry(120), run)
    assert (given_up.verdict, given_up.in_doubt) == (Verdict.UNPROVEN, True)
    assert given_up.reason == "the run went back to step 100 after it was saved"
    assert judge(entry(100), run).verdict is Verdict.PROVEN
    # The same before the first record of the next attempt is here.
    marked = mark_given_up(entry(200), 100)
    assert judge(marked, history((0, 400))) == marked
    assert marked.in_doubt


def test_a_resume_from_a_later_step_carries_harm_on() -> None:
    run = history((0, 220), (200, 400))
    harm = incident(150, 180, DIVERGENT)
    assert judge(entry(260, attempt=1), run, harm).verdict is Verdict.BAD
    assert judge(entry(140), run).verdict is Verdict.PROVEN  # by the steps of both attempts


def test_a_run_without_records_leaves_the_verdict_as_it_is() -> None:
    proven = entry(200, verdict=Verdict.PROVEN, reason="as saved")
    assert judge(proven, RunHistory()) == proven


@pytest.mark.parametrize("size", [1, 7, 64])
def test_how_a_run_is_cut_does_not_change_its_history(size: int) -> None:
    norms = {190: 1.0, 199: np.nan, 209: np.inf, 219: 1.0, 300: np.nan}
    block = block_of((0, 220), (100, 250), norms=norms)
    whole, cut = RunHistory(), RunHistory()
    whole.update(block)
    for part in block.cut(size):
        cut.update(part)
    assert whole.attempts == cut.attempts


@pytest.mark.parametrize("saved", [150, 155, 230])
@pytest.mark.parametrize("is_over", [True, False])
def test_steps_that_were_kept_out_change_no_verdict(saved: int, is_over: bool) -> None:
    run = history((0, 450))
    kept_out = incident(151, 240 if is_over else None, IncidentClass.KEPT_OUT)
    assert judge(entry(saved), run, kept_out) == judge(entry(saved), run)


def test_a_loss_that_stays_above_its_level_counts_though_each_bad_step_was_kept_out() -> None:
    kept_out = incident(150, 260, LINGERING)
    facts = dataclasses.replace(kept_out.facts, is_kept_out=True)
    lingering = dataclasses.replace(kept_out, facts=facts)
    assert judge(entry(200), history((0, 450)), lingering).verdict is Verdict.BAD
