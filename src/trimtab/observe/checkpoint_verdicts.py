"""The verdict on a checkpoint: a pure function of the judged run.

bad         its files are damaged; or its values, or the norms of its step, are not finite; or it
            was saved in an incident that hurt the weights
proven      undamaged, and training went on from it for 100 healthy steps
unproven    everything else; in doubt if an incident that is not over may reach back to it
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import HARMLESS, Symptom
from trimtab.core.incidents import Incident, IncidentClass, Moment
from trimtab.core.signals import ADAM_M_NORM, ADAM_V_NORM, PARAM_NORM
from trimtab.detect.state.hard_limits import nonfinite_rows
from trimtab.explain.context import ONSET_MARGIN_STEPS
from trimtab.journal.checkpoints.index import CheckpointEntry, Verdict, mark_given_up

STATE_NORMS = (PARAM_NORM, ADAM_M_NORM, ADAM_V_NORM)
"""Norms of what a checkpoint holds: one that is not finite means that it holds such a value."""

_PART_RECORDS = 65536
"""Records at a time: the norms of a long run do not fit into memory together."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Consecutive records without a return to an earlier step."""

    first_tick: int
    first_step: int
    last_step: int
    nonfinite: list[tuple[int, int | None]] = field(default_factory=list)
    """Steps from which on the norms were not finite, and at which they were finite again."""

    def is_finite_after(self, step: int) -> bool:
        """Whether the state after this step is finite, as far as its norms were recorded."""
        return not any(
            first <= step and (last is None or step < last) for first, last in self.nonfinite
        )


class RunHistory:
    """The attempts of a run, from its records in order."""

    def __init__(self) -> None:
        self.attempts: dict[int, Attempt] = {}
        """By the number of the attempt, in order."""

    def update(self, block: Block) -> None:
        """Add the next records; how a run is cut never changes the result."""
        for part in block.cut(_PART_RECORDS):
            starts = np.flatnonzero(np.diff(part.attempt)) + 1
            for first, end in pairwise([0, *starts.tolist(), len(part)]):
                if first < end:
                    self._update_attempt(part[first:end])

    def __len__(self) -> int:
        return len(self.attempts)

    def attempt_at(self, tick: int) -> int:
        """The attempt that a record belongs to; the first if it is older than all of them."""
        numbers = [n for n, attempt in self.attempts.items() if attempt.first_tick <= tick]
        return numbers[-1] if numbers else next(iter(self.attempts), 0)

    def leads(self, number: int, step: int, later: int) -> bool:
        """Whether attempt `later` goes on from what attempt `number` had at `step`.

        It does if none of the attempts between them began before that step.
        """
        return later >= number and all(
            attempt.first_step >= step
            for other, attempt in self.attempts.items()
            if number < other <= later
        )

    def went_back_before(self, number: int, step: int) -> int | None:
        """The step to which the run went back from attempt `number`, if before `step`."""
        firsts = [a.first_step for other, a in self.attempts.items() if other > number]
        return min((first for first in firsts if first < step), default=None)

    def _update_attempt(self, block: Block) -> None:
        number = int(block.attempt[0])
        last_step = int(block.step[-1])
        attempt = self.attempts.get(number)
        if attempt is None:
            attempt = self.attempts[number] = Attempt(
                first_tick=int(block.tick[0]), first_step=int(block.step[0]), last_step=last_step
            )
        attempt.last_step = max(attempt.last_step, last_step)
        names = [name for name in STATE_NORMS if name in block.columns]
        if not names:
            return
        seen = np.logical_or.reduce([block.columns[name].present for name in names])
        bad = np.logical_or.reduce([nonfinite_rows(block, name) for name in names])
        if not bad.any() and not attempt.nonfinite:
            return
        for row in np.flatnonzero(seen).tolist():
            is_open = bool(attempt.nonfinite) and attempt.nonfinite[-1][1] is None
            if bad[row] and not is_open:
                attempt.nonfinite.append((int(block.step[row]), None))
            elif is_open and not bad[row]:
                attempt.nonfinite[-1] = (attempt.nonfinite[-1][0], int(block.step[row]))


PROVEN_AFTER_STEPS = 100
"""Healthy steps after a checkpoint that prove it. Source: in the study of recovery the slowest
alarm came 45 steps after its fault, and moderate harm could be told 32 steps after that."""

_PASSING_CLASSES = frozenset(
    {
        IncidentClass.KEPT_OUT,
        IncidentClass.RESTORED,
        IncidentClass.RECOVERED,
        IncidentClass.RECOVERING,
        IncidentClass.PLATEAU,
    }
)
"""The loss came back, or there was nothing more to learn."""

_UNDECIDED = (IncidentClass.OPEN, IncidentClass.RECOVERING)
_LOST = (IncidentClass.DIVERGENT, IncidentClass.DEAD, IncidentClass.COLLAPSED)

_PASSING_SYMPTOMS = HARMLESS | {
    Symptom.GRADIENT_SPIKE,
    Symptom.UPDATE_SPIKE,
    Symptom.OVERFLOWS,
    Symptom.REPEATED_BATCH,
    Symptom.ODD_TOKENS,
    Symptom.TEXT_CHANGED,
    Symptom.STATE_RESET,
}
"""What concerns a batch, the clock or moments that begin anew: if the loss does not show it, the
weights are not hurt."""


def judge_checkpoint(
    entry: CheckpointEntry, history: RunHistory, incidents: Sequence[Incident]
) -> CheckpointEntry:
    """One entry with its verdict; without records of its attempt the verdict stays."""
    if entry.damage or entry.facts.fault:
        return _with(entry, Verdict.BAD, entry.damage or entry.facts.fault)
    own = history.attempts.get(entry.facts.attempt)
    if own is None:
        return entry
    if not own.is_finite_after(entry.step - 1):
        reason = f"weights or optimizer state were not finite at step {entry.step - 1}"
        return _with(entry, Verdict.BAD, reason)
    before, after = _sides(entry, history, incidents)
    hurt = [i for i in before if _has_hurt(i) and _lasts_until(i, entry.step)]
    if hurt:
        return _with(entry, Verdict.BAD, f"saved in {_describe(hurt[-1])}")
    open_ones = [i for i in before if _is_unknown(i)]
    if open_ones:
        reason = f"saved in {_describe(open_ones[-1])}, which is not over"
        return _with(entry, Verdict.UNPROVEN, reason, in_doubt=True)
    soon = [i for i in after if _onset(i).step < entry.step + ONSET_MARGIN_STEPS]
    if any(_has_hurt(i) or _is_unknown(i) for i in soon):
        steps = _onset(soon[0]).step - entry.step
        reason = f"saved {steps} steps before the onset of {_describe(soon[0])}"
        return _with(entry, Verdict.UNPROVEN, reason, in_doubt=True)
    back = entry.given_up_for
    if back is None:
        back = history.went_back_before(entry.facts.attempt, entry.step)
    if back is not None:
        return mark_given_up(entry, back)
    return _by_healthy_steps(entry, history, [*before, *after])


def _by_healthy_steps(
    entry: CheckpointEntry, history: RunHistory, incidents: Sequence[Incident]
) -> CheckpointEntry:
    facts = entry.facts
    last = max(
        attempt.last_step
        for number, attempt in history.attempts.items()
        if history.leads(facts.attempt, facts.step, number)
    )
    healthy = max(last + 1 - facts.step, 0)
    for incident in incidents:
        end = last if incident.end is None else incident.end.step
        healthy -= max(end + 1 - max(_onset(incident).step, facts.step), 0)
    healthy = max(healthy, 0)
    if healthy >= PROVEN_AFTER_STEPS:
        return _with(entry, Verdict.PROVEN, f"{healthy:,} healthy steps after it")
    reason = f"{healthy:,} of the {PROVEN_AFTER_STEPS} healthy steps that prove it"
    return _with(entry, Verdict.UNPROVEN, reason)


def _sides(
    entry: CheckpointEntry, history: RunHistory, incidents: Sequence[Incident]
) -> tuple[list[Incident], list[Incident]]:
    """The incidents of its line with an onset before it, and after it."""
    before, after = [], []
    facts = entry.facts
    for incident in incidents:
        if incident.incident_class is IncidentClass.KEPT_OUT or HARMLESS.issuperset(
            incident.symptoms
        ):
            continue
        onset = _onset(incident)
        number = history.attempt_at(onset.tick)
        if onset.step < facts.step:
            # An attempt that began after the onset carries the harm on; an earlier one undid it.
            if history.leads(number, onset.step + 1, facts.attempt):
                before.append(incident)
        elif history.leads(facts.attempt, facts.step, number):
            after.append(incident)
    return before, after


def _onset(incident: Incident) -> Moment:
    """Where an incident began to concern the weights: it may have opened with a slow step."""
    if incident.findings[0].symptom not in HARMLESS:
        return incident.onset
    first = next(finding for finding in incident.findings if finding.symptom not in HARMLESS)
    late = 0 if first.onset_tick is None else first.tick - first.onset_tick
    return Moment(step=first.step - late, tick=first.tick - late, loss=None)


def _has_hurt(incident: Incident) -> bool:
    if incident.incident_class in (IncidentClass.OPEN, *_PASSING_CLASSES):
        return False
    is_silent = incident.incident_class is IncidentClass.SILENT
    return not (is_silent and all(name in _PASSING_SYMPTOMS for name in incident.symptoms))


def _is_unknown(incident: Incident) -> bool:
    """Whether it is open and may still turn out to be harmful."""
    return incident.end is None and incident.incident_class in _UNDECIDED


def _lasts_until(incident: Incident, step: int) -> bool:
    """Whether the incident was not over before this step; a divergence never is."""
    if incident.end is None or incident.incident_class in _LOST:
        return True
    return step <= incident.end.step


def _describe(incident: Incident) -> str:
    name = incident.incident_class
    symptom = next(symptom for symptom in incident.symptoms if symptom not in HARMLESS)
    onset = _onset(incident).step
    return f"incident {incident.number} ({name}, {symptom}, onset at step {onset:,})"


def _with(
    entry: CheckpointEntry, verdict: Verdict, reason: str, *, in_doubt: bool = False
) -> CheckpointEntry:
    return dataclasses.replace(entry, verdict=verdict, reason=reason, in_doubt=in_doubt)
