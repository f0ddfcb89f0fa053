"""ResumeAudit: a finding for each thing that a resume has not restored.

The live guard compares (comparison.py) and writes what differs into the record of that step, as
bits: a finished journal is judged as the live run was. The figures are in the event `resume audit`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.causes import Cause
from trimtab.core.detector import Detector
from trimtab.core.findings import Explanation, Finding, Severity, Symptom
from trimtab.core.signals import RESUME_AUDIT
from trimtab.detect.resume import facts
from trimtab.detect.resume.comparison import Difference


@dataclass(frozen=True, slots=True)
class _Thing:
    """What was not restored, in words."""

    cause: Cause
    fix: str


_ANNOUNCE = 'announce a change that you want by guard.event("planned change", ...) before the '
THINGS: Mapping[Symptom, _Thing] = {
    Symptom.WRONG_CHECKPOINT: _Thing(
        Cause.WRONG_RESUME,
        "load the checkpoint of the step at which the run continues, into the model that is "
        "trained, and give that step to watch(step=...)",
    ),
    Symptom.MOMENTS_NOT_RESTORED: _Thing(
        Cause.OPTIMIZER_STATE_LOST,
        "call optimizer.load_state_dict(...) with the state of this checkpoint, after the "
        "optimizer has all its parameters and before the first step",
    ),
    Symptom.OPTIMIZER_STEP_NOT_RESTORED: _Thing(
        Cause.OPTIMIZER_STATE_LOST,
        "restore `step` of the optimizer's state with the moments: Adam's bias correction depends "
        "on it",
    ),
    Symptom.LR_RESTARTED: _Thing(
        Cause.LR_DISCONTINUITY,
        "call scheduler.load_state_dict(...), or compute the rate from the step of the run",
    ),
    Symptom.LR_CHANGED: _Thing(Cause.LR_DISCONTINUITY, f"{_ANNOUNCE}first step"),
    Symptom.OPTIONS_CHANGED: _Thing(
        Cause.WRONG_RESUME,
        f"optimizer.load_state_dict(...) restores them with the moments; {_ANNOUNCE}first step",
    ),
    Symptom.SCALER_NOT_RESTORED: _Thing(
        Cause.WRONG_RESUME, "save scaler.state_dict() and call scaler.load_state_dict(...)"
    ),
    Symptom.DATA_RESTARTED: _Thing(
        Cause.WRONG_RESUME,
        "save and load the state of the loader (StatefulDataLoader), or skip the batches that "
        "were trained on",
    ),
    Symptom.DATA_OFF: _Thing(
        Cause.WRONG_RESUME,
        "save the state of the loader after the update and before the next batch is fetched, so "
        "that it has yielded what was trained on and no more",
    ),
    Symptom.RNG_NOT_RESTORED: _Thing(
        Cause.WRONG_RESUME,
        "save torch.get_rng_state() and those of numpy and Python, and set them after everything "
        "else is loaded",
    ),
}


_ORDER = tuple(THINGS)
"""The place of each bit, and the order of findings: the most telling first. Journals depend on it:
new things go to the end."""

_WARNING = 1 << 16
"""A bit of this half: the same thing, only a warning."""


class ResumeAudit(Detector):
    """One finding for each bit."""

    name = "resume-audit"

    def __init__(self) -> None:
        """Nothing is remembered: each record says all."""

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        value = record.signals.get(RESUME_AUDIT)
        if value is None or not 0.0 < value < _WARNING * _WARNING or value != int(value):
            return []  # nothing, or not ours
        bits = int(value)
        findings = []
        for place, symptom in enumerate(_ORDER):
            bit = 1 << place
            if bits & bit:
                findings.append(self._finding(record, symptom, Severity.ALARM))
            elif bits & bit * _WARNING:
                findings.append(self._finding(record, symptom, Severity.WARN))
        return findings

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows of the first steps after a resume."""
        return np.flatnonzero(block.column(RESUME_AUDIT).present)

    def _finding(self, record: Record, symptom: Symptom, severity: Severity) -> Finding:
        thing = THINGS[symptom]
        return self.finding(
            record,
            symptom,
            severity,
            RESUME_AUDIT,
            expected=0.0,
            explanation=Explanation(
                cause_id=thing.cause.id,
                cause_title=thing.cause.title,
                remedy=thing.fix[0].upper() + thing.fix[1:] + ".",
            ),
        )


def encode(differences: Iterable[Difference]) -> float:
    """The differences as the value of a signal."""
    bits = 0
    for difference in differences:
        bit = 1 << _ORDER.index(difference.symptom)
        bits |= bit if difference.severity is Severity.ALARM else bit * _WARNING
    return float(bits)


def describe(difference: Difference) -> str:
    """A difference in one sentence, with its fix."""
    fact, found = difference.fact, difference.found
    values = f"{fact} is {found:.6g}, saved was {difference.saved:.6g}"
    if fact == facts.BATCH_RESTARTED:
        values = "the first batch is the first one of the run"
    elif fact == facts.BATCH_OFFSET and found < 0:
        values = f"the first batch was trained on {-found:.0f} steps before"
    elif fact == facts.BATCH_OFFSET:
        values = f"{found:.0f} steps of data were skipped"
    elif fact.startswith(facts.RNG):
        values = f"the generator of {fact.removeprefix(facts.RNG)} is not as it was saved"
    return f"{difference.symptom} ({values}): {THINGS[difference.symptom].fix}"
