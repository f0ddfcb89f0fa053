"""A rollback that changes nothing is an experiment on the steps that are done again."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kit.synthetic import block_of, falling_loss, incident_of, ranked

from trimtab.core.block import Block, Event
from trimtab.core.causes import Cause
from trimtab.core.events import ROLLBACK
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident, Moment
from trimtab.explain.causes.ranking import HARDWARE
from trimtab.explain.context import REPEATED_STEPS, went_well_again
from trimtab.explain.evidence.checks import ObservedOutcome

BACK_AT, TO = 110, 90
"""The tick of the rollback, and the step it goes to."""


def run_of(ticks: int, **facts: Any) -> Block:
    """Steps 0 to 109, then from 90 on again."""
    block = block_of({"loss": falling_loss(ticks)})
    step = [n if n < BACK_AT else n - BACK_AT + TO for n in range(ticks)]
    event = Event(kind=ROLLBACK, tick=BACK_AT, step=TO, facts={"to": TO, **facts})
    return dataclasses.replace(block, step=block.tick * 0 + step, events=(event,))


def spike(tick: int, step: int, *, number: int = 1, rolled_back: bool = False) -> Incident:
    moment = Moment(step=step, tick=tick, loss=9.0)
    finding = Finding(
        detector="loss-spike",
        symptom=Symptom.LOSS_SPIKE,
        severity=Severity.ALARM,
        signal="loss",
        step=step,
        tick=tick,
        value=9.0,
    )
    made = incident_of(moment, number=number, findings=(finding,))
    return dataclasses.replace(made, rolled_back=rolled_back)


FIRST = spike(100, 100, rolled_back=True)
FAR = BACK_AT + 100 - TO + REPEATED_STEPS + 1


@pytest.mark.parametrize(
    ("run", "others", "expected"),
    [
        (run_of(FAR), [], True),
        (run_of(FAR - 1), [], None),
        (run_of(FAR), [spike(BACK_AT + 12, 102, number=2)], False),
        (run_of(FAR), [spike(20, 20, number=2)], True),
        (run_of(FAR, skip=[[100, 101]]), [], None),
        (run_of(FAR, hold=["lr"]), [], None),
        (run_of(FAR, lr_factor=0.5), [], None),
    ],
)
def test_what_does_not_come_back_is_known(
    run: Block, others: Sequence[Incident], expected: bool | None
) -> None:
    assert went_well_again(FIRST, [FIRST, *others], run) is expected


def test_an_incident_without_a_rollback_was_not_done_again() -> None:
    incident = dataclasses.replace(FIRST, rolled_back=False)
    assert went_well_again(incident, [incident], run_of(FAR)) is None


def test_what_goes_well_again_speaks_for_the_hardware_and_not_for_the_batch() -> None:
    seen = {"loss_burst": ObservedOutcome.YES, "gradient_burst": ObservedOutcome.YES}
    before = ranked(**seen).first
    after = ranked(**seen, well_again=ObservedOutcome.YES)
    back = ranked(gradient_huge=ObservedOutcome.YES, well_again=ObservedOutcome.NO)
    assert before.cause not in HARDWARE
    assert after.first.cause is not before.cause
    assert back.first.cause is not Cause.BIT_FLIP
