"""Checks for non-finite values: the loss, the gradient norm and the loss scale."""

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
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.check import (
    CheckResult,
    Outcome,
    answered,
    first_finding,
    number,
    unrecorded,
)


def nonfinite_loss(context: IncidentContext) -> CheckResult:
    """Is the loss NaN or infinite at any record of the incident?"""
    loss = context.during(LOSS)
    bad = loss.nonfinite
    if not loss.recorded:
        first = first_finding(context, Symptom.NONFINITE_LOSS)
        if first is None:
            return unrecorded(LOSS, "no loss recorded in the incident")
        return answered(LOSS, True, f"loss was {first.value} at step {first.step}, a lost record")
    if not bad.any():
        return answered(LOSS, False, "every recorded loss of the incident is finite")
    row = context.onset_row + int(np.flatnonzero(bad)[0])
    value = context.block.column(LOSS).values[row]
    return answered(LOSS, True, f"loss is {value} at step {context.block.step[row]}")


def nonfinite_norm(context: IncidentContext) -> CheckResult:
    """Is a weight, update or optimizer norm NaN or infinite?"""
    first = first_finding(context, Symptom.NONFINITE_NORM)
    if first is not None:
        return answered(first.signal, True, f"{first.signal} is {first.value} at step {first.step}")
    norms = [name for name in (PARAM_NORM, UPDATE_NORM, ADAM_V_NORM) if context.recorded(name)]
    if not norms:
        return unrecorded(PARAM_NORM, "weight, update and optimizer norms not recorded")
    return answered(norms[0], False, f"{', '.join(norms)} finite")


def state_first(context: IncidentContext) -> CheckResult:
    """Was a norm of weights, updates or moments non-finite while the loss was still finite?"""
    norms = [name for name in (PARAM_NORM, UPDATE_NORM, ADAM_V_NORM) if context.recorded(name)]
    if not norms:
        return unrecorded(PARAM_NORM, "weight, update and optimizer norms not recorded")
    loss = context.during(LOSS).finite
    for name in norms:
        rows = np.flatnonzero(context.during(name).nonfinite & loss)
        if len(rows):
            step = int(context.block.step[context.onset_row + rows[0]])
            return answered(name, True, f"{name} non-finite at step {step}, the loss finite")
    return answered(norms[0], False, f"{', '.join(norms)} not non-finite before the loss")


def half_precision(context: IncidentContext) -> CheckResult:
    """Was the run in fp16?"""
    if context.facts.dtype is not None:
        return answered("dtype", context.facts.dtype == "fp16", f"the run is {context.facts.dtype}")
    if context.recorded(LOSS_SCALE):
        return answered(
            "dtype", True, "dtype not recorded, but a loss scale is: assumed to be fp16"
        )
    return unrecorded("dtype", "neither dtype nor loss scale recorded")


def gradient_first(context: IncidentContext) -> CheckResult:
    """Was the gradient norm non-finite while the loss was still finite?"""
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


def loss_first(context: IncidentContext) -> CheckResult:
    """Was the loss non-finite no later than the gradient norm?"""
    other = gradient_first(context)
    if other.outcome is Outcome.NOT_RECORDED:
        return other
    return answered(LOSS, other.outcome is Outcome.NO, other.observation)


def stays_nonfinite(context: IncidentContext) -> CheckResult:
    """Did the loss stay non-finite to the end of the incident?"""
    loss = context.during(LOSS)
    bad = loss.nonfinite[loss.present]
    if not len(bad):
        return unrecorded(LOSS, "the losses of the incident were lost")
    count = int(np.argmin(bad[::-1])) if not bad.all() else len(bad)
    stays = count > 1
    return answered(LOSS, stays, f"the last {count} recorded losses are non-finite")


def nonfinite_gradient(context: IncidentContext) -> CheckResult:
    """Is there a record whose gradient norm is NaN or infinite?"""
    if not context.recorded(GRAD_NORM):
        return unrecorded(GRAD_NORM, "gradient norm not recorded")
    count = int(context.during(GRAD_NORM).nonfinite.sum())
    return answered(GRAD_NORM, count > 0, f"{count} non-finite gradient norms")


def scale_collapsed(context: IncidentContext) -> CheckResult:
    """Did the loss scale fall under 1?"""
    scale = context.during(LOSS_SCALE)
    if not scale.finite.any():
        return unrecorded(LOSS_SCALE, "loss scale not recorded")
    lowest = float(scale.values[scale.finite].min())
    return answered(
        LOSS_SCALE, lowest < context.config.scale_floor, f"lowest loss scale {number(lowest)}"
    )


def scale_constant(context: IncidentContext) -> CheckResult:
    """Did the loss scale never change?"""
    scale = context.block.column(LOSS_SCALE)[: context.last_row + 1]
    values = scale.values[scale.finite]
    if not len(values):
        return unrecorded(LOSS_SCALE, "loss scale not recorded")
    constant = bool((values == values[0]).all())
    seen = f"{number(float(values.min()))} to {number(float(values.max()))}"
    return answered(LOSS_SCALE, constant, f"loss scale {seen} over {len(values)} records")
