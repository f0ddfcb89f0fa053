"""Panels of non-finite numbers: the loss, the gradient norm and the loss scale."""

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.signals import (
    ADAM_V_NORM,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    PARAM_NORM,
    UPDATE_NORM,
)
from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.evidence.reading import Reading, Verdict, number, reading, unrecorded


def nonfinite_loss(case: IncidentContext) -> Reading:
    """Is the loss NaN or infinite at any record of the incident?"""
    bad = case.during(LOSS).nonfinite
    if not bad.any():
        return reading(LOSS, False, "every recorded loss of the incident is finite")
    row = case.onset_row + int(np.flatnonzero(bad)[0])
    value = case.block.column(LOSS).values[row]
    return reading(LOSS, True, f"loss is {value} at step {case.block.step[row]}")


def nonfinite_norm(case: IncidentContext) -> Reading:
    """Is a weight, update or optimizer norm NaN or infinite?"""
    hits = [f for f in case.incident.findings if f.symptom is Symptom.NONFINITE_NORM]
    if hits:
        seen = f"{hits[0].signal} is {hits[0].value} at step {hits[0].step}"
        return reading(hits[0].signal, True, seen)
    norms = [name for name in (PARAM_NORM, UPDATE_NORM, ADAM_V_NORM) if case.recorded(name)]
    if not norms:
        return unrecorded(PARAM_NORM, "weight, update and optimizer norms not recorded")
    return reading(norms[0], False, f"{', '.join(norms)} finite")


def half_precision(case: IncidentContext) -> Reading:
    """Was the run in fp16?"""
    if case.facts.dtype is not None:
        return reading("dtype", case.facts.dtype == "fp16", f"the run is {case.facts.dtype}")
    if case.recorded(LOSS_SCALE):
        return reading("dtype", True, "dtype not recorded, but a loss scale is: taken as fp16")
    return unrecorded("dtype", "dtype not recorded, and no loss scale either")


def gradient_first(case: IncidentContext) -> Reading:
    """Was the gradient norm non-finite while the loss still was finite?"""
    if not case.recorded(GRAD_NORM):
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    gradient, loss = case.during(GRAD_NORM).nonfinite, case.during(LOSS).nonfinite
    if not gradient.any():
        return reading(GRAD_NORM, False, "the gradient norm stayed finite")
    first = int(np.argmax(gradient))
    step = int(case.block.step[case.onset_row + first])
    earlier = not loss[: first + 1].any()
    when = "while the loss was still finite" if earlier else "no earlier than the loss"
    return reading(GRAD_NORM, earlier, f"gradient norm non-finite at step {step}, {when}")


def loss_first(case: IncidentContext) -> Reading:
    """Was the loss non-finite no later than the gradient norm?"""
    other = gradient_first(case)
    if other.verdict is Verdict.NOT_RECORDED:
        return other
    return reading(LOSS, other.verdict is Verdict.NO, other.observation)


def stays_nonfinite(case: IncidentContext) -> Reading:
    """Did the loss stay non-finite to the end of the incident?"""
    loss = case.during(LOSS)
    bad = loss.nonfinite[loss.present]
    count = int(np.argmin(bad[::-1])) if not bad.all() else len(bad)
    stays = count > 1
    return reading(LOSS, stays, f"the last {count} recorded losses are non-finite")


def nonfinite_gradient(case: IncidentContext) -> Reading:
    """Is there a record whose gradient norm is NaN or infinite?"""
    if not case.recorded(GRAD_NORM):
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    count = int(case.during(GRAD_NORM).nonfinite.sum())
    return reading(GRAD_NORM, count > 0, f"{count} non-finite gradient norms")


def scale_collapsed(case: IncidentContext) -> Reading:
    """Did the loss scale fall under 1?"""
    scale = case.during(LOSS_SCALE)
    if not scale.finite.any():
        return unrecorded(LOSS_SCALE, "loss scale not recorded")
    lowest = float(scale.values[scale.finite].min())
    return reading(
        LOSS_SCALE, lowest < case.config.scale_floor, f"lowest loss scale {number(lowest)}"
    )


def scale_constant(case: IncidentContext) -> Reading:
    """Did the loss scale never move?"""
    scale = case.block.column(LOSS_SCALE)[: case.last_row + 1]
    values = scale.values[scale.finite]
    if not len(values):
        return unrecorded(LOSS_SCALE, "loss scale not recorded")
    constant = bool((values == values[0]).all())
    seen = f"{number(float(values.min()))} to {number(float(values.max()))}"
    return reading(LOSS_SCALE, constant, f"loss scale {seen} over {len(values)} records")
