"""Panels of a sudden rise: the loss, and what may have caused it."""

import math

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.core.signals import (
    FINGERPRINT,
    GRAD_NORM,
    LOSS,
    LR,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
)
from trimtab.detect.tools.windows import mean_and_deviation
from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.evidence.reading import Reading, number, reading, unrecorded

LR_JUMP = 1.2
"""A learning rate that moves by more than this factor in one record, and by more than three times
its usual pace, is discontinuous. Source: the factor is the one by which published diagnoses tell a
schedule fault; the pace keeps a steep warm-up in a thinned log from counting."""

ODD_TOKENS_SIGMAS = 6.0
"""A batch whose rarity or share of distinct tokens is further off than this is odd. Source: robust
scores of healthy public runs stay under 4.5; batches of rare or repeated tokens in small models
moved these two by 10 deviations and more."""

_RISES = (Symptom.LOSS_SPIKE, Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE)
_RECOVERED = (IncidentClass.RECOVERABLE, IncidentClass.HARD_BATCH)

_PACE_RECORDS = 20
_PACE_FACTOR = 3.0


def spike(case: IncidentContext) -> Reading:
    """Is there a loss above mean + 3 sigma of the 100 before it?"""
    hits = [f for f in case.incident.findings if f.symptom is Symptom.LOSS_SPIKE]
    if not hits:
        return reading(LOSS, False, "no loss above the limit")
    first = hits[0]
    return reading(
        LOSS,
        True,
        f"loss {number(first.value)} at step {first.step}, limit {number(first.limit)}"
        f"{case.doubt(LOSS)}",
    )


def rose(case: IncidentContext) -> Reading:
    """Did the loss or a norm rise beyond the run's own noise?"""
    hits = [finding for finding in case.incident.findings if finding.symptom in _RISES]
    if not hits:
        return reading(LOSS, False, "no loss and no norm beyond its limit")
    first = hits[0]
    shown = f"{first.signal} {number(first.value)} at step {first.step}"
    usual = f"expected {number(first.expected)}, limit {number(first.limit)}"
    return reading(first.signal, True, f"{shown}, {usual}{case.doubt(first.signal)}")


def recovered(case: IncidentContext) -> Reading:
    """Was the loss back in the time that a recovery may take?"""
    incident = case.incident
    if incident.end and incident.incident_class in _RECOVERED:
        return reading(LOSS, True, f"back at step {incident.end.step}, {incident.records} records")
    ended = "" if incident.end else "; the log ends there"
    return reading(LOSS, False, f"not back in {incident.records} records{ended}")


def had_its_time(case: IncidentContext) -> Reading:
    """Did the log go on for the time that a recovery may take?"""
    seen = f"{case.incident.records} records from the onset on"
    return reading(LOSS, case.incident.incident_class is not None, seen)


def long_tail(case: IncidentContext) -> Reading:
    """Is the gradient norm at the spike over 30 times its rolling mean?"""
    peak, usual = case.largest_finite(GRAD_NORM), case.before(GRAD_NORM, case.config.window)
    if peak is None or not len(usual):
        return unrecorded(GRAD_NORM, "no finite gradient norm before clipping recorded")
    mean, _ = mean_and_deviation(usual)
    ratio = peak / mean if mean else math.inf
    return reading(
        GRAD_NORM,
        ratio > case.config.long_tail_ratio,
        f"gradient norm {number(peak)}, {ratio:.1f} times the mean before "
        f"({number(mean)}){case.doubt(GRAD_NORM)}",
    )


def odd_tokens(case: IncidentContext) -> Reading:
    """Are the tokens of the batch at the onset far from those of the batches before?"""
    shown = []
    odd = False
    for signal, worse in ((TOKEN_RARITY, 1.0), (UNIQUE_TOKEN_SHARE, -1.0)):
        value, usual = case.at_onset(signal), case.before(signal, case.config.window)
        if value is None or len(usual) < 2:
            continue
        mean, deviation = mean_and_deviation(usual)
        odd = odd or worse * (value - mean) > ODD_TOKENS_SIGMAS * deviation
        shown.append(f"{signal} {number(value)}, before {number(mean)} +- {number(deviation)}")
    if not shown:
        return unrecorded(TOKEN_RARITY, "token statistics of the batch not recorded")
    return reading(TOKEN_RARITY, odd, "; ".join(shown))


def lr_jump(case: IncidentContext) -> Reading:
    """Did the learning rate jump at the onset?"""
    lr = case.block.column(LR)
    rows = np.flatnonzero(lr.finite[: case.onset_row + 1])[-_PACE_RECORDS - 2 :]
    if len(rows) < 3:
        return unrecorded(LR, "learning rate not recorded")
    values = lr.values[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.abs(np.log(values[1:] / values[:-1]))
    # The update of the step before shows in this loss, so a jump one record earlier counts too.
    largest, pace = float(np.max(moves[-2:])), float(np.median(moves[:-2])) if len(moves) > 2 else 0
    jumped = largest > math.log(LR_JUMP) and largest > _PACE_FACTOR * pace
    way = (
        f"{number(float(values[-3]))} -> {number(float(values[-2]))} -> {number(float(values[-1]))}"
    )
    return reading(LR, jumped, f"learning rate {way}")


def repeated_batch(case: IncidentContext) -> Reading:
    """Was the batch of the onset seen shortly before?"""
    prints = case.block.column(FINGERPRINT)
    row = case.onset_row
    if not prints.present[row]:
        return unrecorded(FINGERPRINT, "batch fingerprints not recorded")
    start = max(row - case.config.rise_records, 0)
    same = np.flatnonzero(prints.values[start:row] == prints.values[row])
    if not len(same):
        return reading(FINGERPRINT, False, f"no equal batch in the {row - start} records before")
    step = int(case.block.step[start + same[-1]])
    return reading(FINGERPRINT, True, f"the same batch as at step {step}")


def resumed(case: IncidentContext) -> Reading:
    """Did the run resume, or its step go back, within the 50 records before the onset?"""
    start = max(case.onset_row - case.config.recovery_records, 0)
    first, last = int(case.block.tick[start]), int(case.block.tick[case.onset_row])
    for event in case.block.events:
        if event.kind == "resume" and first <= event.tick <= last:
            return reading("events", True, f"resume at step {event.step}")
    attempts = case.block.attempt[start : case.onset_row + 1]
    if attempts[0] != attempts[-1]:
        return reading("step", True, "the step went back shortly before: a restart")
    return reading("events", False, "no resume and no step going back shortly before")
