"""Panels of slow trouble: what the 200 records up to the onset show."""

import math

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.signals import GRAD_NORM, LOSS, LR, PARAM_NORM
from trimtab.detect.tools.windows import mean_and_deviation
from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.evidence.reading import Reading, number, reading, unrecorded


def monotone_rise(case: IncidentContext) -> Reading:
    """Did the loss rise at each of the last 200 records?"""
    hits = [f for f in case.incident.findings if f.symptom is Symptom.RISING_LOSS]
    if not hits:
        return reading(LOSS, False, f"no {case.config.rise_records} losses that each rose")
    losses = case.before(LOSS, case.config.rise_records)
    return reading(
        LOSS,
        True,
        f"loss rose {number(float(losses[0]))} -> {number(hits[0].value)} without a break in the "
        f"{case.config.rise_records} records up to step {hits[0].step}",
    )


def lr_rising(case: IncidentContext) -> Reading:
    """Did the learning rate increase over the same records?"""
    rates = case.before(LR, case.config.rise_records)
    if len(rates) < 2:
        return unrecorded(LR, "learning rate not recorded")
    way = f"learning rate {number(float(rates[0]))} -> {number(float(rates[-1]))}"
    return reading(LR, bool(rates[-1] > rates[0]), way)


def norm_changed(case: IncidentContext) -> Reading:
    """Did a parameter group's weight norm change by more than 2x in the 200 steps up to here?"""
    names = [n for n in case.block.columns if n == PARAM_NORM or n.startswith(f"{PARAM_NORM}/")]
    changes = {}
    for name in names:
        norms = case.before(name, case.config.norm_steps, within_steps=case.config.norm_steps)
        if len(norms) > 1 and min(norms[0], norms[-1]) > 0:
            changes[name] = float(norms[0]), float(norms[-1])
    if not changes:
        return unrecorded(PARAM_NORM, "weight norms not recorded")
    name = max(changes, key=lambda name: abs(math.log(changes[name][1] / changes[name][0])))
    then, now = changes[name]
    ratio = max(now / then, then / now)
    way = f"{name} {number(then)} -> {number(now)} in {case.config.norm_steps} steps"
    return reading(name, ratio > case.config.norm_ratio, way)


def gradient_trend(case: IncidentContext) -> Reading:
    """Does the rolling mean of the gradient norm trend up?"""
    norms = case.before(GRAD_NORM, case.config.rise_records)
    if len(norms) < 4:
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    earlier, deviation = mean_and_deviation(norms[: len(norms) // 2])
    later, _ = mean_and_deviation(norms[len(norms) // 2 :])
    # Two standard errors of a mean of half the records: the textbook says "trending" and no more.
    rises = later - earlier > 2 * deviation / np.sqrt(len(norms) // 2)
    means = f"mean gradient norm {number(earlier)} -> {number(later)} from half to half"
    return reading(GRAD_NORM, bool(rises), f"{means}{case.doubt(GRAD_NORM)}")
