"""Observations whose meaning follows from what they are: the hardware, and numbers that never move.

What they say about causes is by construction, not fitted (`causes/ranking.py`).
"""

import math
from collections.abc import Mapping

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.signals import LOSS, LR, UPDATE_NORM
from trimtab.core.text import counted, digits
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.checks import nonfinite_loss
from trimtab.explain.evidence.observation import SignalView, YesNo, observation


@observation("A bit flipped in memory", source="the bits of a tensor, summed before and after")
def bit_flipped(proof_of_hardware: str) -> YesNo:
    """Has the guard found a tensor that changed while no code wrote to it?"""
    return True, proof_of_hardware


_UPDATES = 16
"""Records of the update norm that say how far a step moves the weights; also the most steps that
lie between two records of a weight norm."""

_LARGEST_UPDATE = 100.0
"""Times the usual update. Source: with beta2 = 0.999 a coordinate moves at most 32 times the
learning rate in a step of Adam, and usually 0.2 to 1 times."""


@observation("Weights move further than updates can", source="the bound of Adam's update")
def moved_from_outside(
    context: IncidentContext, param_norms: tuple[SignalView, ...], lr: SignalView
) -> YesNo | None:
    """Does a group's norm change by more than all updates since its last record could have done?"""
    rise = max(lr.ratio(float(lr.after[:2].max())), 1.0)
    found = []
    for norms in param_norms:
        group = norms.name.partition("/")[2]
        updates = context.before(f"{UPDATE_NORM}/{group}", _UPDATES)
        if len(updates) == _UPDATES and updates.max() > 0:
            moved = abs(float(norms.after[0] - norms.before[-1]))
            found.append((moved / float(updates.max()) / rise, norms.name))
    if not found:
        return None
    furthest, name = max(found)
    text = f"{name} moves as far as {furthest:.3g} of its updates"
    return furthest > _LARGEST_UPDATE * _UPDATES, text


_FEW = 6
"""Records that a statement about all of them needs."""


@observation("The learning rate is zero", source="a schedule that never starts")
def lr_zero(context: IncidentContext) -> YesNo | None:
    lr = context.during(LR)
    values = lr.values[lr.finite]
    if len(values) < _FEW:
        return None
    return not values.any(), f"learning rate {digits(float(values.max()))} at most"


@observation("The losses never change, or come again exactly", source="no update reaches the model")
def loss_constant(context: IncidentContext) -> YesNo | None:
    """Is every loss from the first record on the same, or the same as some records before?"""
    loss = context.block.column(LOSS)[: context.last_row + 1]
    values = loss.values[loss.finite]
    if len(values) < _FEW:
        return None
    for period in range(1, len(values) // 2 + 1):
        if np.array_equal(values[period:], values[:-period]):
            return True, f"the same losses every {counted(period, 'record')}"
    return False, "no loss comes again exactly"


@observation(
    "The loss is NaN where no number can overflow", source="stability guides, question 1.2"
)
def nan_in_range(dtype: str, context: IncidentContext) -> YesNo | None:
    """Is the loss non-finite in bf16 or fp32, whose range no activation leaves?"""
    found = nonfinite_loss(context)
    return (True, f"{found.observation}, in {dtype}") if found.is_yes and dtype != "fp16" else None


@observation("One loss is high while its tokens are usual", source="a batch that is hard, not odd")
def batch_alone(loss: SignalView, token_rarity: SignalView) -> YesNo | None:
    """Is one loss far above those around it, and are the tokens of the batch as usual?"""
    around = np.concatenate((loss.lead[:-4], loss.after[4:12]))
    if len(around) < 4:
        return None
    high = loss.sigmas(float(loss.soon(4).max()))
    is_alone = high > 6 and loss.sigmas(float(np.median(around))) < 2
    rare = token_rarity.sigmas(float(token_rarity.soon(4).max()))
    return is_alone and rare < 4, f"loss {high:.1f} sigma up, token rarity {rare:.1f} sigma"


RECURRING = 3
"""Other incidents of the same sort that make one cause of all of them likely."""


@observation("Incidents like this one recur", source="a run that spikes again and again")
def recurs(context: IncidentContext) -> YesNo | None:
    """Did several others begin with the same symptom? Fewer say nothing: the run may go on."""
    text = f"{context.similar} other incidents began with {context.incident.symptoms[0]}"
    return (True, text) if context.similar >= RECURRING else None


# Experiments: the step repeated with one change (`live/recover/experiments.py`).

Experiments = Mapping[str, tuple[str, str]]


def _shown(experiments: Experiments, name: str, *answers: str) -> YesNo | None:
    """Return whether an experiment gave one of these answers; None if it was not made."""
    found = experiments.get(name)
    return None if found is None else (found[0] in answers, found[1])


@observation("The batch itself is not finite", source="experiment: its tensors")
def batch_nonfinite(experiments: Experiments) -> YesNo | None:
    return _shown(experiments, "first_nonfinite", "batch")


@observation("An operation is not finite from finite inputs", source="experiment: its modules")
def module_nonfinite(experiments: Experiments) -> YesNo | None:
    """Are weights and batch finite, and the output of a module or the loss is not?"""
    return _shown(experiments, "first_nonfinite", "module", "loss")


@observation("The loss is finite in fp32 alone", source="experiment: without autocast")
def finite_in_fp32(experiments: Experiments) -> YesNo | None:
    """Is the loss of the batch finite without autocast, and not finite with it?"""
    found = experiments.get("fp32")
    return None if found is None or found[0] == "finite" else (found[0] == "precision", found[1])


@observation("A few rows make the loss of the batch", source="experiment: halves of the batch")
def few_rows(experiments: Experiments) -> YesNo | None:
    return _shown(experiments, "half", "rows")


@observation("The same batch gives another loss", source="experiment: the batch once more")
def not_repeatable(experiments: Experiments) -> YesNo | None:
    return _shown(experiments, "again", "differs")


# Settings that the run states.

Stated = Mapping[str, float]


def _stated(settings: Stated, name: str, *, least: float = -math.inf, most: float) -> YesNo | None:
    """Return whether a setting lies between two numbers; None if it is not stated."""
    value = settings.get(name)
    return None if value is None else (least <= value <= most, f"{name} {digits(value)}")


@observation("beta2 is 0.99 or more", source="stability guides: 0.95; StableAdamW on 0.999")
def beta2_high(settings: Stated) -> YesNo | None:
    return _stated(settings, "beta2", least=0.99, most=1.0)


@observation("Epsilon is 1e-6 or more", source="torch's default is 1e-8; small-scale proxies")
def epsilon_large(settings: Stated) -> YesNo | None:
    """Is epsilon as large as the root of a usual second moment of a large model?"""
    return _stated(settings, "epsilon", least=1e-6, most=math.inf)


@observation("Gradients are not clipped", source="stability guides: clip at 1.0")
def not_clipped(settings: Stated) -> YesNo | None:
    return _stated(settings, "clip", most=0.0)


@observation("There is no warm-up", source="stability guides: about 2,000 steps")
def no_warmup(settings: Stated) -> YesNo | None:
    return _stated(settings, "warmup", most=0.0)


# What a detector reports is all that these have.


@observation("Parameters do not update", source="detector", symptoms=(Symptom.FROZEN,))
def not_updating(loss: SignalView) -> YesNo | None:
    return None


@observation(
    "The scaler overflows again and again",
    source="detector",
    symptoms=(Symptom.OVERFLOWS, Symptom.SCALE_COLLAPSE),
)
def overflows(loss_scale: SignalView) -> YesNo | None:
    return None
