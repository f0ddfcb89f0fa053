"""Checks for slow changes: what the 200 records up to the onset show."""

import math

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.robust import mean_and_deviation
from trimtab.core.signals import GRAD_NORM, LOSS, LR, PARAM_NORM
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.check import CheckResult, answered, first_finding, number, unrecorded


def monotone_rise(context: IncidentContext) -> CheckResult:
    """Did the loss rise at each of the last 200 records?"""
    count = context.config.rise_records
    first = first_finding(context, Symptom.RISING_LOSS)
    if first is None:
        return answered(LOSS, False, f"no {count} losses in a row that each rose")
    losses = context.before(LOSS, count)
    start = float(losses[0]) if len(losses) else None
    return answered(
        LOSS,
        True,
        f"loss rose {number(start)} -> {number(first.value)} without a break in the {count} "
        f"records up to step {first.step}",
    )


def lr_rising(context: IncidentContext) -> CheckResult:
    """Did the learning rate increase over the same records?"""
    rates = context.before(LR, context.config.rise_records)
    if len(rates) < 2:
        return unrecorded(LR, "learning rate not recorded")
    change = f"learning rate {number(float(rates[0]))} -> {number(float(rates[-1]))}"
    return answered(LR, bool(rates[-1] > rates[0]), change)


def norm_changed(context: IncidentContext) -> CheckResult:
    """Did a parameter group's weight norm change by more than 2x in the 200 steps up to here?"""
    names = [n for n in context.block.columns if n == PARAM_NORM or n.startswith(f"{PARAM_NORM}/")]
    changes = {}
    for name in names:
        norms = context.before(
            name, context.config.norm_steps, within_steps=context.config.norm_steps
        )
        if len(norms) > 1 and min(norms[0], norms[-1]) > 0:
            changes[name] = float(norms[0]), float(norms[-1])
    if not changes:
        return unrecorded(PARAM_NORM, "weight norms not recorded")
    name = max(changes, key=lambda name: abs(math.log(changes[name][1] / changes[name][0])))
    then, now = changes[name]
    ratio = max(now / then, then / now)
    change = f"{name} {number(then)} -> {number(now)} in {context.config.norm_steps} steps"
    return answered(name, ratio > context.config.norm_ratio, change)


def gradient_trend(context: IncidentContext) -> CheckResult:
    """Does the rolling mean of the gradient norm trend up?"""
    norms = context.before(GRAD_NORM, context.config.rise_records)
    if len(norms) < 4:
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    earlier, deviation = mean_and_deviation(norms[: len(norms) // 2])
    later, _ = mean_and_deviation(norms[len(norms) // 2 :])
    # Two standard errors of a mean of half the records: the textbook only says "trending".
    rises = later - earlier > 2 * deviation / np.sqrt(len(norms) // 2)
    means = (
        f"mean gradient norm {number(earlier)} -> {number(later)} from the first half to the second"
    )
    return answered(GRAD_NORM, bool(rises), f"{means}{context.caveat(GRAD_NORM)}")
