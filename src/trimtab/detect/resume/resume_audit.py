"""ResumeAudit: names what a resume has not restored.

The live guard writes what was saved and what it found into the first record after a resume; the
learning rate of the next records shows a schedule that started again although the optimizer had its
old rate for one more step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block
from trimtab.core.causes import Cause
from trimtab.core.detector import Detector, KnownChange, Row, rows_of
from trimtab.core.findings import Explanation, Finding, Symptom
from trimtab.core.signals import LR, RESUME_FOUND, RESUME_SAVED
from trimtab.detect.resume import facts
from trimtab.detect.resume.comparison import LOST, Difference, compare, is_restarted

_MARK = f"{RESUME_SAVED}{facts.STEP}"
"""The signal that every record after a resume has."""


AUDIT_EVENT = "resume audit"
"""Kind of the event that has the findings as sentences."""


@dataclass(frozen=True, slots=True)
class _Thing:
    """What was not restored, in words."""

    cause: Cause
    fix: str


_ANNOUNCE = 'announce a change that you want by guard.event("planned change", ...) before the '
THINGS: Mapping[str, _Thing] = {
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


class ResumeAudit(Detector):
    """One finding for each thing that a resume has not restored."""

    name = "resume-audit"
    listens_to = KnownChange.CHANGED | KnownChange.RESUMED

    def __init__(self) -> None:
        self._is_planned = False
        self._rates: dict[str, float] = {}
        """The saved facts about the learning rate, while a restart may still show."""
        self._left = 0
        """Records in which it may."""

    def on_event(self, change: KnownChange) -> None:
        """A change that comes with the resume is planned."""
        self._is_planned = bool(change & KnownChange.CHANGED)
        if self._is_planned:
            self._left = 0

    def update(self, row: Row) -> list[Finding]:
        """Judge one record."""
        lr = row.signals.get(LR)
        if _MARK in row.signals:
            saved, found = facts.from_signals(row.signals)
            is_planned, self._is_planned = self._is_planned, False
            differences = compare(saved, found, lr=lr, is_planned=is_planned)
            names = [difference.symptom for difference in differences]
            self._rates = {name: saved[name] for name in saved if name.startswith(_RATE_FACTS)}
            is_judged = is_planned or Symptom.LR_RESTARTED in names
            self._left = 0 if is_judged else facts.FIRST_LRS - 1
            return [_finding(row, difference) for difference in differences]
        if not self._left:
            return []
        self._left -= 1
        if lr is None or not is_restarted(self._rates, lr):
            return []
        self._left = 0
        saved_lr = self._rates[facts.LR]
        return [_finding(row, _restarted(lr, saved_lr))]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records: only those after a resume have anything to judge."""
        column = block.columns.get(_MARK)
        first = self._left
        marked = [] if column is None else np.flatnonzero(column.present).tolist()
        rows = {*range(first), *(row + k for row in marked for k in range(facts.FIRST_LRS))}
        return [
            finding
            for row in sorted(rows)
            if row < len(block)
            for finding in self.update(next(rows_of(block[row : row + 1])))
        ]


_RATE_FACTS = (facts.LR, facts.FIRST_LR)


def describe(finding: Finding) -> str:
    """A finding of the audit in one sentence, with its fix."""
    thing = THINGS[finding.symptom]
    fact = finding.signal.removeprefix(RESUME_FOUND)
    values = f"{fact} is {finding.value:.6g}, saved was {finding.expected:.6g}"
    if fact == facts.BATCH_RESTARTED:
        values = "the first batch is the first one of the run"
    elif fact == facts.BATCH_OFFSET and finding.value < 0:
        values = f"the first batch was trained on {-finding.value:.0f} steps before"
    elif fact == facts.BATCH_OFFSET:
        values = f"{finding.value:.0f} steps of data were skipped"
    elif fact.startswith(facts.RNG):
        values = f"the generator of {fact.removeprefix(facts.RNG)} is not as it was saved"
    return f"{finding.symptom} ({values}): {thing.fix}"


def _restarted(lr: float, saved_lr: float) -> Difference:
    return Difference(
        symptom=Symptom.LR_RESTARTED, severity=LOST, fact=facts.LR, found=lr, saved=saved_lr
    )


def _finding(row: Row, difference: Difference) -> Finding:
    thing = THINGS[difference.symptom]
    return Finding(
        detector=ResumeAudit.name,
        symptom=difference.symptom,
        severity=difference.severity,
        signal=f"{RESUME_FOUND}{difference.fact}",
        step=row.step,
        tick=row.tick,
        value=difference.found,
        expected=difference.saved,
        explanation=Explanation(
            cause_id=thing.cause.id,
            cause_title=thing.cause.title,
            remedy=thing.fix[0].upper() + thing.fix[1:] + ".",
        ),
    )
