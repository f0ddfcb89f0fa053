"""Observations on the curves that any log has: loss, gradient norm, learning rate."""

import math

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.signals import GRAD_NORM, LOSS, LR, PARAM_NORM
from trimtab.core.text import counted, digits, times_text
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.checks import (
    Observed,
    begins_again,
    gradient_first,
    nonfinite_loss,
    state_first,
)
from trimtab.explain.evidence.observation import SignalView, YesNo, deviation, observation

_LAB = "small models with one fault each (docs/detection.md)"

_USUAL, _MULTIPLIED, _STEADY = 1.2, 1.4, 1.6
"""Times the usual: less than the first is noise, more than the second is a multiple. A constant
multiple of a loss varies by less than the third in 8 records; a spike that decays by more."""

_SAME, _LOSS_STAYS, _NORM_STAYS = 1.5, 1.15, 1.4
"""One constant multiplies loss and gradient norm alike, and both stay: medians of 8 records may
differ by these factors. Chosen: a norm is noisier than a loss, and a spike that is slow to come
back loses over a quarter of its height in 64 records."""

NO_NOISE = 1e4
"""Deviations from which their number says only that the loss was all but constant. Chosen."""

_SETTLED = 3.0
"""Largest over smallest loss of 64 records of a run that has a usual level. Chosen: noise and
learning together stay far below it after the warm-up."""

_MAX_LEAD = 16
"""Records between an onset that is dated to an odd gradient and the fault: twice the lead of a
warning, which may itself follow a warning."""


@observation("The loss rises at once and comes back", source="detection thresholds of 6 sigma")
def loss_burst(loss: SignalView) -> YesNo:
    """Is the loss far off within four records, and back soon after?"""
    later = loss.sigmas(loss.median(24, 64) if loss.has(24, 64) else loss.median(8, 24))
    high = loss.sigmas(float(loss.soon(4).max()))
    up = f"{high:.1f} sigma up" if high < NO_NOISE else "far above its noise"
    return high > 4 and later < 1, f"loss {up}, {_sigmas(later)} later"


def _sigmas(value: float) -> str:
    """Return deviations as text; of a loss that had hardly any noise, only that they are many."""
    return f"{value:.1f}" if abs(value) < NO_NOISE else "over 10,000"


SHARE_LEFT = 0.4
"""What must be left of a rise after 16 records: else it comes back. Chosen."""


@observation("The loss moves to a higher level at once", source=_LAB)
def loss_level_up(loss: SignalView) -> YesNo:
    first, later = loss.median(0, 8), loss.median(16, 48)
    is_level = later - loss.usual > SHARE_LEFT * (first - loss.usual)
    is_up = loss.sigmas(first) > 1.5 and loss.sigmas(later) > 1
    return is_up and is_level, _course(loss, first, later)


@observation("The loss rises slowly", source=_LAB)
def loss_creeps_up(loss: SignalView) -> YesNo:
    first, later = loss.median(0, 4), loss.median(32, 64)
    return loss.sigmas(first) < 1.5 and loss.sigmas(later) > 1, _course(loss, first, later)


def _course(loss: SignalView, first: float, later: float) -> str:
    return f"loss {digits(loss.usual)} before, {digits(first)} at first, {digits(later)} later"


@observation("The loss falls far", source="duplicate batches and leaks: one-sided rules miss them")
def loss_fell(loss: SignalView) -> YesNo:
    soon = loss.median(0, 8)
    low = min(soon, loss.median(16, 48)) if loss.has(16, 48) else soon
    return loss.sigmas(low) < -2.5, f"loss {digits(loss.usual)} before, {digits(low)} after"


def _first_multiplied(signal: SignalView, spread: float = math.inf) -> int:
    """Find the record from which the signal is a multiple of the usual, if it became so at once.

    The onset may be dated to an odd gradient a few records earlier.
    """
    ratios = signal.after / signal.usual if signal.usual else signal.after
    for at in range(1, min(_MAX_LEAD, len(ratios) - 8) + 1):
        low, high = ratios[at : at + 8].min(), ratios[at : at + 8].max()
        if ratios[at - 1] < _USUAL and low > _MULTIPLIED and high < spread * low:
            return at
    return 0


@observation("Loss and gradient norm are multiplied at once", source=_LAB)
def loss_multiplied(
    loss: SignalView, grad_norm: SignalView, context: IncidentContext
) -> YesNo | None:
    """Are loss and gradient norm multiplied by the same constant from the onset on?"""
    # A loss that falls far before has no usual level that could be multiplied.
    if loss.before.max() > _SETTLED * loss.before.min():
        return None
    at = _first_multiplied(loss, _STEADY)
    both = [(item, item.after[at:]) for item in (loss, grad_norm)]
    if min(len(after) for _, after in both) < 16:
        return None
    lowest = min(item.ratio(float(after[:8].min())) for item, after in both)
    first, first_norm = (item.ratio(float(np.median(after[:8]))) for item, after in both)
    last, last_norm = (item.ratio(float(np.median(after[-8:]))) for item, after in both)
    text = f"loss {first:.2g} times the usual, later {last:.2g} times; "
    text += f"norm {first_norm:.2g} times, later {last_norm:.2g} times"
    is_one_factor = lowest > _MULTIPLIED and _is_near(first_norm, first, _SAME)
    stays = _is_near(last, first, _LOSS_STAYS) and _is_near(last_norm, first_norm, _NORM_STAYS)
    # Nor is it a factor where the loss only returns to where it was not long ago.
    long_before = context.before(LOSS, 4 * len(loss.before))
    is_return = float(np.median(long_before)) > 0.8 * float(np.median(loss.after[at:][:8]))
    return is_one_factor and stays and not is_return, text


def _is_near(one: float, other: float, factor: float) -> bool:
    """Return whether two values differ by less than a factor; never if one is 0 or infinite."""
    return one < factor * other and other < factor * one


@observation("The gradient norm is multiplied at once and stays so", source=_LAB)
def gradient_multiplied(grad_norm: SignalView) -> YesNo | None:
    """Is every gradient norm larger by about the same factor?"""
    at = _first_multiplied(grad_norm)
    first, later = grad_norm.median(at, at + 8), grad_norm.median(at + 16, at + 48)
    if first <= 0:
        return None
    low = grad_norm.ratio(float(grad_norm.after[at : at + 8].min()))
    text = f"gradient norm {grad_norm.ratio(first):.2g} times the usual, later "
    text += f"{grad_norm.ratio(later):.2g} times"
    return low > _MULTIPLIED and _is_near(later, first, _NORM_STAYS), text


@observation("The gradient norm is large for a few records", source="norm over 3 times its median")
def gradient_burst(grad_norm: SignalView) -> YesNo:
    later, high = grad_norm.median(6, 22), grad_norm.peak(4)
    return high > 3 and grad_norm.ratio(later) < 1.7, f"gradient norm {high:.3g} times usual"


@observation("The gradient norm is beyond any batch", source="bad data reaches about 40 times")
def gradient_huge(grad_norm: SignalView) -> YesNo:
    high = grad_norm.peak(len(grad_norm.after))
    return high > 100, f"gradient norm {high:.3g} times the usual at most"


@observation("Large gradient norms come and go", source="a bad device fails at some steps")
def gradient_intermittent(grad_norm: SignalView) -> YesNo | None:
    """Are there at least three separate bursts, with usual norms between them?"""
    if len(grad_norm.after) < 32:
        return None
    high = grad_norm.after > 4 * grad_norm.usual
    bursts = int((high[1:] & ~high[:-1]).sum()) + int(high[0])
    usual = float((grad_norm.after < 2 * grad_norm.usual).mean())
    return bursts >= 3 and usual > 0.5, f"{counted(bursts, 'burst')} of the gradient norm"


@observation("The gradient norm grows", source=_LAB)
def gradient_grows(grad_norm: SignalView) -> YesNo | None:
    first, later = grad_norm.median(0, 8), grad_norm.median(40, 64)
    if first <= 0:
        return None
    return later > 1.3 * first, f"gradient norm {digits(first)}, later {digits(later)}"


@observation("The gradient norm falls at once", source=_LAB)
def gradient_fell(grad_norm: SignalView) -> YesNo:
    first = grad_norm.median(0, 8)
    ratio = grad_norm.ratio(first)
    fell = ratio < 0.9 and grad_norm.sigmas(first) < -1.5
    return fell, f"gradient norm {ratio:.2g} times the usual"


@observation("Loss and gradient norm become noisier", source="noise goes as 1/sqrt(batch size)")
def noisier(loss: SignalView, grad_norm: SignalView) -> YesNo | None:
    """Do the changes from record to record grow, without a change of the level?"""
    if min(len(loss.after), len(grad_norm.after)) < 32:
        return None
    ratios = [
        deviation(np.diff(item.after)) / deviation(np.diff(item.before))
        for item in (loss, grad_norm)
    ]
    text = f"{ratios[0]:.2g} and {ratios[1]:.2g} times the usual change from record to record"
    return min(ratios) > 1.3 and max(ratios) < 4, text


# Values that are NaN or infinite: where, and which first.

_GUIDES = "stability guides, their first questions"


@observation("The loss is NaN or infinite", source=_GUIDES)
def loss_nonfinite(context: IncidentContext) -> YesNo | None:
    return _yes_no(nonfinite_loss(context))


@observation(
    "The gradient is non-finite while the loss is finite", source=_GUIDES, signal=GRAD_NORM
)
def gradient_nonfinite_first(context: IncidentContext) -> YesNo | None:
    found = _yes_no(gradient_first(context))
    # The statement says already what the loss was then.
    return found and (found[0], found[1].removesuffix(", while the loss was still finite"))


@observation(
    "Weights or moments are non-finite before the loss",
    source="bit flips in a small model",
    signal=PARAM_NORM,
)
def state_nonfinite_first(context: IncidentContext) -> YesNo | None:
    return _yes_no(state_first(context))


def _yes_no(found: Observed) -> YesNo | None:
    return (found.is_yes, found.observation) if found.is_answer else None


# The learning rate, and where in the run the incident begins.

EARLY_RECORDS, EARLY_STEPS = 150, 4000
"""An incident this soon after the start of a run has no healthy past. Source: a learning rate that
is too high shows in or shortly after the warm-up, which takes about 2,000 steps in published runs
and 50 in the lab."""

LR_JUMP = 1.2
"""A learning rate that changes by more than this factor in one record, and by more than three times
its usual rate of change, is discontinuous. Source: published diagnoses use this factor for a
schedule fault; the rate of change keeps a steep warm-up in a thinned log from counting."""

RATES = 1e-30, 1e30
"""Learning rates outside count as these: the ratio of two damaged values must stay finite."""


@observation(
    "The learning rate jumps",
    source="over 1.2 times in a step: published diagnoses",
    symptoms=(Symptom.LR_JUMP,),
)
def lr_jumped(lr: SignalView, context: IncidentContext) -> YesNo:
    """Is one change, up to where the incident shows, far larger than those before?"""
    if begins_again(context):
        return False, "the learning rate begins again from 0: a warm-up, no jump"
    largest, usual = largest_move(lr)
    times = times_text(float(np.exp(largest)))
    if largest > np.log(LR_JUMP) and largest > 3 * usual:
        return True, f"{times} in one record"
    return False, f"largest change in one record: {times}"


def largest_move(lr: SignalView) -> tuple[float, float]:
    """Return the largest change of the rate near the incident and its usual one, as logarithms."""
    values = np.concatenate((lr.before, lr.soon(2)))
    moves = np.abs(np.diff(np.log(np.clip(values, *RATES))))
    near, earlier = moves[-6:], moves[:-6]
    return float(near.max()), float(np.median(earlier)) if len(earlier) else 0.0


@observation(
    "The learning rate turns up after its warm-up",
    source="inverted cosine, rate rising with the loss: stability guides",
    symptoms=(Symptom.LR_RISING,),
)
def lr_turned_up(lr: SignalView, context: IncidentContext) -> YesNo | None:
    """Did the rate fall or stay before, and does it rise since, whenever the loss followed?"""
    if len(lr.after) < 8:
        return None
    column = context.block.column(LR)[: context.shown_row]
    before = column.values[column.finite]
    top = int(np.argmax(before[: max(len(before) // 2, 1)]))
    lowest = float(before[top:].min())
    fell = lowest < 0.999 * float(before[top])
    # A constant rate has no decay to turn up in: it must rise clearly.
    stayed = float(np.median(before[top:])) <= 1.001 * float(before[top])
    fell = fell or (stayed and float(lr.after[-1]) > 1.1 * float(before[top]))
    rises = float(np.median(np.diff(lr.after))) > 0
    text = f"learning rate {digits(float(before[top]))} -> {digits(lowest)} -> "
    return fell and rises, text + digits(float(lr.after[-1]))


@observation(
    "The run had learned little before the incident",
    source="LR too high shows in the warm-up",
    symptoms=(Symptom.NO_LEARNING,),
    opening=True,
)
def early(onset_row: int, onset_step: int) -> YesNo:
    """Is the onset among the first records and steps of the run?"""
    is_early = onset_row < EARLY_RECORDS and onset_step < EARLY_STEPS
    records = counted(onset_row, "record")
    if not is_early:
        return False, f"step {onset_step}, {records} before it"
    came = f"Only {records} came before it"
    return True, came if onset_row else "It began with the first record"


@observation(
    "The run has learned nothing",
    source="loss at the entropy of single tokens",
    symptoms=(Symptom.NO_LEARNING,),
    opening=True,
)
def never_learned(loss: SignalView) -> YesNo:
    """Did the incident open because the loss never left its start, not for something sudden?"""
    return False, f"loss {digits(loss.usual)} before, {digits(float(loss.after[0]))} now"
