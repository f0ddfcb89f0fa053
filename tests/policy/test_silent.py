"""What trimtab itself advises where the loss did not follow an alarm."""

import dataclasses

import numpy as np
from tests.synthetic import block_of, falling_loss

from trimtab.core.actions import ActionKind
from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.judge import Judge


def test_a_silent_spike_that_passed_is_waited_out_and_a_silent_fault_that_stays_is_not() -> None:
    norm = np.random.default_rng(1).normal(0.5, 0.05, 600)
    norm[300] = 20.0
    block = block_of({"loss": falling_loss(600), "grad_norm": norm})
    judge = Judge()
    judge.feed(block)
    (incident,) = judge.incidents
    assert incident.incident_class is IncidentClass.SILENT
    assert judge.explain(incident, block).action.kind is ActionKind.WAIT

    finding = dataclasses.replace(incident.findings[0], symptom=Symptom.STATE_LOST)
    stays = dataclasses.replace(incident, findings=(finding,))
    assert judge.explain(stays, block).action.kind is ActionKind.ROLL_BACK
