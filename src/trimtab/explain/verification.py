"""Verification: what must hold in a run with the fix of an incident, and did not hold in it."""

import math

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.causes import Cause
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.text import digits
from trimtab.explain.comparison import Check, apply_check
from trimtab.explain.diagnosis import Diagnosis

NATS, DEVIATIONS = 0.05, 4
"""How far above the usual a loss may be after a fix: 0.05 nats, or what noise reaches. Source: the
template of the textbook; a normal value is over 4 deviations once in 30,000 records."""

TIMES_NORM = 5
"""How many times the usual gradient norm is allowed after a fix. Source: the worked example of the
textbook allows 3.0 where 0.6 is usual."""

RECORDS = 64
"""Records before the onset whose highest value a run with the fix may have, too. Chosen."""

FIXED_FROM_THE_START = frozenset(
    {
        Cause.RARE_TOKENS,
        Cause.STALE_SECOND_MOMENT,
        Cause.EPSILON_REGIME,
        Cause.LR_TOO_HIGH,
        Cause.WEIGHT_DECAY,
        Cause.FP16_OVERFLOW,
        Cause.ATTENTION_LOGIT_GROWTH,
        Cause.OUTPUT_LOGIT_DRIFT,
        *(cause for cause in Cause if cause.is_of_policy),
    }
)
"""Causes whose fix is a setting of the whole run, which then is another one from its first step."""

HIGHER = (IncidentClass.LINGERING, IncidentClass.DIVERGENT, IncidentClass.PLATEAU)
"""Classes whose last level, which is that of its newest quarter, must fail a check: the middle
between it and the expected one, on average, because single losses are noisy."""


def verification_checks(diagnosis: Diagnosis, block: Block) -> list[Check]:
    """Return what to check in a run with the fix; nothing that this run would have passed."""
    incident, symptoms = diagnosis.incident, diagnosis.symptoms
    onset, until = incident.onset.step, max(incident.last.step, incident.peak.step)
    likely = next((one.cause for one in diagnosis.hypotheses if one.cause), None)
    checks = []
    if symptoms.loss_before is not None and not incident.is_of_policy:
        limit = _loss_limit(incident, block, symptoms.loss_before)
        level = incident.facts.level
        if limit is not None and likely not in FIXED_FROM_THE_START:
            checks.append(Check(last=onset - 1, within=NATS))
        if limit is not None:
            checks.append(Check(first=onset, last=until, max=limit))
        is_higher = incident.incident_class in HIGHER and incident.facts.factor is None
        if level is not None and level.gap > 0 and is_higher:
            # A trend that promised more than the level before is no measure of a fix.
            half = max(level.now - level.gap / 2, symptoms.loss_before)
            if half < min(level.now, math.inf if limit is None else limit):
                first, most = until - (until - onset) // 4, float(digits(half))
                checks.append(Check(first=first, last=until, mean_max=most))
    if symptoms.grad_norm_before:
        highest = TIMES_NORM * symptoms.grad_norm_before
        limit = _limit(incident, block, signals.GRAD_NORM, highest)
        if limit is not None:
            checks.append(Check(signal=signals.GRAD_NORM, first=onset, last=until, max=limit))
    reward = incident.facts.reward
    if reward is not None and reward.is_gone:
        half = float(digits((reward.before + reward.now) / 2))
        found = Check(signal=signals.REWARD, first=onset, last=until, mean_min=half)
        checks += [found] * (not apply_check(found, block, None).passed)
    return checks


def _loss_limit(incident: Incident, block: Block, before: float) -> float | None:
    level = incident.facts.level
    noise = DEVIATIONS * level.noise if level else 0.0
    return _limit(incident, block, signals.LOSS, before + max(NATS, noise))


def _limit(incident: Incident, block: Block, signal: str, limit: float) -> float | None:
    """Return a limit over what was usual, rounded; None if the incident stayed under it."""
    first, last = block.row_of(incident.onset.tick), block.row_of(incident.last.tick)
    column = block.column(signal)
    before, during = column[max(first - RECORDS, 0) : first], column[first : last + 1]
    usual = before.values[before.finite]
    limit = float(digits(max(limit, float(usual.max(initial=limit)))))
    return None if (during.values[during.present] <= limit).all() else limit
