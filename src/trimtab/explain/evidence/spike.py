"""Checks for a sudden rise of the loss, and for what may have caused it."""

import math

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.core.robust import mean_and_deviation
from trimtab.core.signals import (
    FINGERPRINT,
    GRAD_NORM,
    LOSS,
    LR,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
)
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.check import (
    CheckResult,
    answered,
    caveat,
    first_finding,
    number,
    unrecorded,
)

LR_JUMP = 1.2
"""A learning rate that changes by more than this factor in one record, and by more than three times
its usual rate of change, is discontinuous. Source: published diagnoses use this factor for a
schedule fault; the rate of change keeps a steep warm-up in a thinned log from counting."""

ODD_TOKENS_SIGMAS = 6.0
"""A batch whose rarity or share of distinct tokens is further off than this is odd. Source: robust
scores of healthy public runs stay under 4.5; batches of rare or repeated tokens in small models
moved these two by 10 deviations and more."""

_RISES = (Symptom.LOSS_SPIKE, Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE)
_RECOVERED = (IncidentClass.RECOVERABLE, IncidentClass.HARD_BATCH)

_USUAL_RECORDS = 20
_USUAL_FACTOR = 3.0


def spike(context: IncidentContext) -> CheckResult:
    """Is there a loss above mean + 3 sigma of the 100 before it?"""
    first = first_finding(context, Symptom.LOSS_SPIKE)
    if first is None:
        return answered(LOSS, False, "no loss above the limit")
    return answered(
        LOSS,
        True,
        f"loss {number(first.value)} at step {first.step}, limit {number(first.limit)}"
        f"{caveat(context, first)}",
    )


def rose(context: IncidentContext) -> CheckResult:
    """Did the loss or a norm rise beyond the noise of the run?"""
    first = first_finding(context, *_RISES)
    if first is None:
        return answered(LOSS, False, "no loss and no norm beyond its limit")
    shown = f"{first.signal} {number(first.value)} at step {first.step}"
    usual = f"expected {number(first.expected)}, limit {number(first.limit)}"
    return answered(first.signal, True, f"{shown}, {usual}{caveat(context, first)}")


def recovered(context: IncidentContext) -> CheckResult:
    """Was the loss back in the time that a recovery may take?"""
    incident = context.incident
    if incident.end and incident.incident_class in _RECOVERED:
        return answered(LOSS, True, f"back at step {incident.end.step}, {incident.records} records")
    ended = "" if incident.end else "; the log ends there"
    return answered(LOSS, False, f"not back in {incident.records} records{ended}")


def had_its_time(context: IncidentContext) -> CheckResult:
    """Did the log continue for the time that a recovery may take?"""
    seen = f"{context.incident.records} records from the onset on"
    return answered(LOSS, context.incident.incident_class is not None, seen)


def long_tail(context: IncidentContext) -> CheckResult:
    """Is the gradient norm at the spike over 30 times its rolling mean?"""
    peak, usual = (
        context.largest_finite(GRAD_NORM),
        context.before(GRAD_NORM, context.config.window),
    )
    if peak is None or not len(usual):
        return unrecorded(GRAD_NORM, "no finite gradient norm before clipping recorded")
    mean, _ = mean_and_deviation(usual)
    ratio = peak / mean if mean else math.inf
    return answered(
        GRAD_NORM,
        ratio > context.config.long_tail_ratio,
        f"gradient norm {number(peak)}, {ratio:.1f} times the mean before "
        f"({number(mean)}){context.caveat(GRAD_NORM)}",
    )


def odd_tokens(context: IncidentContext) -> CheckResult:
    """Are the tokens of the batch at the onset far from those of the batches before?"""
    shown = []
    odd = False
    for signal, worse in ((TOKEN_RARITY, 1.0), (UNIQUE_TOKEN_SHARE, -1.0)):
        value, usual = context.at_onset(signal), context.before(signal, context.config.window)
        if value is None or len(usual) < 2:
            continue
        mean, deviation = mean_and_deviation(usual)
        odd = odd or worse * (value - mean) > ODD_TOKENS_SIGMAS * deviation
        shown.append(f"{signal} {number(value)}, before {number(mean)} +- {number(deviation)}")
    if not shown:
        return unrecorded(TOKEN_RARITY, "token statistics of the batch not recorded")
    return answered(TOKEN_RARITY, odd, "; ".join(shown))


def lr_jump(context: IncidentContext) -> CheckResult:
    """Did the learning rate jump at the onset?"""
    lr = context.block.column(LR)
    rows = np.flatnonzero(lr.finite[: context.onset_row + 1])[-_USUAL_RECORDS - 2 :]
    if len(rows) < 3:
        return unrecorded(LR, "learning rate not recorded")
    values = lr.values[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.abs(np.log(values[1:] / values[:-1]))
    # This loss shows the update of the step before, so a jump one record earlier counts too.
    largest, usual = (
        float(np.max(moves[-2:])),
        float(np.median(moves[:-2])) if len(moves) > 2 else 0,
    )
    jumped = largest > math.log(LR_JUMP) and largest > _USUAL_FACTOR * usual
    path = " -> ".join(number(float(value)) for value in values[-3:])
    return answered(LR, jumped, f"learning rate {path}")


def repeated_batch(context: IncidentContext) -> CheckResult:
    """Was the batch at the onset seen shortly before?"""
    prints = context.block.column(FINGERPRINT)
    row = context.onset_row
    if not context.has_onset or not prints.present[row]:
        return unrecorded(FINGERPRINT, "batch fingerprints not recorded")
    start = max(row - context.config.rise_records, 0)
    same = np.flatnonzero(prints.values[start:row] == prints.values[row])
    if not len(same):
        return answered(FINGERPRINT, False, f"no equal batch in the {row - start} records before")
    step = int(context.block.step[start + same[-1]])
    return answered(FINGERPRINT, True, f"the same batch as at step {step}")


def resumed(context: IncidentContext) -> CheckResult:
    """Did the run resume, or its step go back, within the 50 records before the onset?"""
    start = max(context.onset_row - context.config.recovery_records, 0)
    rows = slice(start, context.onset_row + 1)
    ticks, attempts = context.block.tick[rows], context.block.attempt[rows]
    if not len(ticks):
        return unrecorded("events", "the records before the onset were lost")
    events = [event for event in context.block.events if ticks[0] <= event.tick <= ticks[-1]]
    for event in events:
        if event.kind == "resume":
            return answered("events", True, f"resume at step {event.step}")
    # A rollback restores the exact state: what is different after it is not what it restored.
    if attempts[-1] - attempts[0] > sum(event.kind == ROLLBACK for event in events):
        return answered("step", True, "the step went back shortly before: a restart")
    return answered("events", False, "no resume and no step going back shortly before")
