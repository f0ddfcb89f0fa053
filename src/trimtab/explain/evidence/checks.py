"""Observed: the answer to one yes/no question about an incident.

A check is a function of the context that returns such an answer. The checks that both rule sets
need are here; those of the textbook alone are in `textbook/tree.py`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from trimtab.core.block import BoolArray, FloatArray
from trimtab.core.causes import Evidence
from trimtab.core.findings import Symptom
from trimtab.core.robust import median, sigma_around
from trimtab.core.signals import (
    ADAM_V_NORM,
    DISCARDED,
    GRAD_NORM,
    LOSS,
    LR,
    PARAM_NORM,
    UPDATE_NORM,
    WEIGHT_HASH,
)
from trimtab.core.text import counted, digits
from trimtab.detect.tools.series import align, last_rows
from trimtab.explain.context import IncidentContext


class ObservedOutcome(StrEnum):
    """Yes, no, or why there is no answer."""

    YES = "yes"
    NO = "no"
    NOT_RECORDED = "not recorded"
    TOO_FEW = "too few records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The answer to one question about an incident."""

    signal: str
    """The signal, event or setting that was checked."""
    outcome: ObservedOutcome
    observation: str
    """The numbers behind it: "loss is nan at step 900"."""

    @property
    def is_yes(self) -> bool:
        return self.outcome is ObservedOutcome.YES

    @property
    def is_no(self) -> bool:
        """Whether the answer is no; false where there is no answer."""
        return self.outcome is ObservedOutcome.NO

    @property
    def is_answer(self) -> bool:
        return self.is_yes or self.is_no

    def to_evidence(self) -> Evidence:
        """Return the answer as evidence for a hypothesis that a yes supports."""
        favors = self.is_yes if self.is_answer else None
        return Evidence(signal=self.signal, observation=self.observation, favors=favors)


class Answers(dict[str, Observed]):
    """Everything observed around one incident, by the id of the observation: asked once, then read.

    Every cause is weighed by the same answers, so they are sorted here and not once per cause.
    """

    @cached_property
    def made(self) -> Mapping[str, bool]:
        """Whether it is yes, of each observation that was answered."""
        return {id: found.is_yes for id, found in self.items() if found.is_answer}

    @cached_property
    def yes(self) -> frozenset[str]:
        """The observations that were answered with yes."""
        return frozenset(id for id, is_yes in self.made.items() if is_yes)


IncidentCheck = Callable[[IncidentContext], Observed]
"""Answers one yes/no question from the records around an incident."""


def answered(signal: str, answer: bool, observation: str) -> Observed:
    outcome = ObservedOutcome.YES if answer else ObservedOutcome.NO
    return Observed(signal=signal, outcome=outcome, observation=observation)


def unrecorded(signal: str, observation: str) -> Observed:
    return Observed(signal=signal, outcome=ObservedOutcome.NOT_RECORDED, observation=observation)


def too_few(signal: str) -> Observed:
    observation = "too few records to tell"
    return Observed(signal=signal, outcome=ObservedOutcome.TOO_FEW, observation=observation)


# The checks that both rule sets need: what was not finite first, and whether the run resumed.


def nonfinite_loss(context: IncidentContext) -> Observed:
    """Is the loss NaN or infinite at any record?"""
    loss = context.during(LOSS)
    bad = loss.nonfinite
    if not loss.recorded:
        first = context.first_finding(Symptom.NONFINITE_LOSS)
        if first is None:
            return unrecorded(LOSS, "no loss recorded in the incident")
        return answered(LOSS, True, f"loss was {first.value} at step {first.step}, a lost record")
    if not bad.any():
        return answered(LOSS, False, "every recorded loss of the incident is finite")
    row = context.onset_row + int(np.flatnonzero(bad)[0])
    value = context.block.column(LOSS).values[row]
    return answered(LOSS, True, f"loss is {value} at step {context.block.step[row]}")


def stays_nonfinite(context: IncidentContext) -> Observed:
    """Did the loss stay non-finite to the end of the incident?"""
    loss = context.during(LOSS)
    bad = loss.nonfinite[loss.present]
    if not len(bad):
        return unrecorded(LOSS, "the losses of the incident were lost")
    count = int(np.argmin(bad[::-1])) if not bad.all() else len(bad)
    return answered(LOSS, count > 1, f"the last {count} recorded losses are non-finite")


def nonfinite_weights(context: IncidentContext) -> Observed:
    """Do the weights hold NaN, where the loss is not finite?"""
    bad_loss = context.during(LOSS).nonfinite
    names = [name for name in context.block.columns if name.startswith(PARAM_NORM)]
    norms = {name: context.during(name) for name in sorted(names, reverse=True)}
    bad = np.flatnonzero(np.any([norm.nonfinite for norm in norms.values()], axis=0))
    if len(bad):
        first = [name for name, norm in norms.items() if norm.nonfinite[bad[0]]]
        groups = [name for name in first if name != PARAM_NORM] or first
        step = int(context.block.step[context.onset_row + bad[0]])
        return answered(groups[0], True, f"{', '.join(groups)} not finite at step {step}")
    for name, norm in reversed(norms.items()):
        rows = np.flatnonzero(norm.finite & bad_loss)
        if len(rows):
            step = int(context.block.step[context.onset_row + rows[-1]])
            value = digits(float(norm.values[rows[-1]]))
            return answered(name, False, f"{name} {value} at step {step}, the loss not finite")
    return _unchanged_weights(context, bad_loss)


def _unchanged_weights(context: IncidentContext, bad_loss: BoolArray) -> Observed:
    """Return no if all weights have the checksums from before, or no such step was applied."""
    pairs = []
    for name in context.block.columns:
        before, during = context.before(name, 1), context.during(name)
        if name.startswith(WEIGHT_HASH) and len(before) and (during.finite & bad_loss).any():
            pairs.append((before[0], during.values[during.finite & bad_loss][-1]))
    if pairs and all(then == now for then, now in pairs):
        return answered(WEIGHT_HASH, False, "the checksums of the weights have not changed")
    discarded = context.during(DISCARDED)
    if bad_loss.any() and bool((discarded.finite & (discarded.values > 0))[bad_loss].all()):
        text = f"{counted(int(bad_loss.sum()), 'step')} with such a loss, each discarded"
        return answered(DISCARDED, False, text)
    return unrecorded(PARAM_NORM, "weight norms not recorded")


def gradient_first(context: IncidentContext) -> Observed:
    """Was the gradient norm non-finite before the loss was?"""
    if not context.recorded(GRAD_NORM):
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    gradient, loss = context.during(GRAD_NORM).nonfinite, context.during(LOSS).nonfinite
    if not gradient.any():
        return answered(GRAD_NORM, False, "the gradient norm stayed finite")
    first = int(np.argmax(gradient))
    step = int(context.block.step[context.onset_row + first])
    earlier = not loss[: first + 1].any()
    when = "while the loss was still finite" if earlier else "no earlier than the loss"
    return answered(GRAD_NORM, earlier, f"gradient norm non-finite at step {step}, {when}")


def state_first(context: IncidentContext) -> Observed:
    """Was a norm of weights, updates or moments non-finite while the loss was still finite?"""
    norms = state_norms(context)
    if not norms:
        return unrecorded(PARAM_NORM, "weight, update and optimizer norms not recorded")
    loss = context.during(LOSS).finite
    for name in norms:
        rows = np.flatnonzero(context.during(name).nonfinite & loss)
        if len(rows):
            step = int(context.block.step[context.onset_row + rows[0]])
            return answered(name, True, f"{name} non-finite at step {step}, the loss finite")
    return answered(norms[0], False, f"{', '.join(norms)} not non-finite before the loss")


def state_norms(context: IncidentContext) -> list[str]:
    return [name for name in (PARAM_NORM, UPDATE_NORM, ADAM_V_NORM) if context.recorded(name)]


NEAR_RECORDS, WARM_UP = 3, 10.0
"""A schedule begins again where the learning rate is 0, or this many times smaller than both before
and after, within so many records of the onset."""


def begins_again(context: IncidentContext) -> bool:
    """Return whether the learning rate decayed, and warms up again from the onset on."""
    column, onset = context.block.column(LR), context.onset_row
    around = slice(max(onset - NEAR_RECORDS, 0), onset + 16)
    before, near = (part.values[part.finite] for part in (column[: around.start], column[around]))
    if not len(before) or len(near) < 2 * NEAR_RECORDS or near.min() < 0:
        return False
    at = int(np.argmin(near[: 2 * NEAR_RECORDS]))
    lowest = WARM_UP * float(near[at])
    # A rate that jumps up at once is another schedule, not a new start of this one.
    rises = bool((np.diff(near[at : at + 3]) > 0).all())
    return rises and float(before.max()) > lowest and float(near[at:].max()) > lowest


MIN_REPEATED, MAX_GAP = 8, 3.0
"""Repeated losses, and errors of their mean from those before, from which and up to which a run
that went back has continued as it was. Chosen."""


def repeated_losses(context: IncidentContext, rows: slice) -> tuple[FloatArray, FloatArray]:
    """Return the losses of these rows that an earlier attempt has at the same steps, and those."""
    step, attempt = context.block.step, context.block.attempt
    loss = context.block.column(LOSS)
    before = np.flatnonzero(loss.finite & (attempt < attempt[rows].max(initial=0)))
    now = np.flatnonzero(loss.finite[rows]) + rows.start
    before = before[last_rows(step[before])]
    is_known, places = align(step[now], step[before])
    return loss.values[now[is_known]], loss.values[before[places[is_known]]]


def _continues(now: FloatArray, before: FloatArray) -> bool:
    gaps = (now - before).tolist()
    if len(gaps) < MIN_REPEATED:
        return False
    gap = median(gaps)
    return abs(gap) <= MAX_GAP * sigma_around(gap, gaps) / math.sqrt(len(gaps))


def resumed(context: IncidentContext) -> Observed:
    """Did the run resume, or its step go back, within the 50 records before the onset?"""
    start = max(context.onset_row - context.config.recovery_records, 0)
    rows = slice(start, context.onset_row + 1)
    ticks, attempts = context.block.tick[rows], context.block.attempt[rows]
    if not len(ticks):
        return unrecorded("events", "the records before the onset were lost")
    for event in context.block.events:
        if event.kind == "resume" and ticks[0] <= event.tick <= ticks[-1]:
            return answered("events", True, f"resume at step {event.step}")
    if attempts[-1] > attempts[0]:
        begin = start + int(np.argmax(attempts == attempts[-1]))
        if _continues(*repeated_losses(context, slice(begin, context.onset_row))):
            text = "the step went back, and the losses were those of the same steps before"
            return answered("step", False, text)
        return answered("step", True, "the step went back shortly before: a restart")
    return answered("events", False, "no resume and no step going back shortly before")
