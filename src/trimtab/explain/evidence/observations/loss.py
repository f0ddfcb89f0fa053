"""Observations on the loss and the gradient norm: what any log has."""

import math

import numpy as np

from trimtab.explain.evidence.check import number
from trimtab.explain.evidence.observation import Seen, observation
from trimtab.explain.evidence.signal_view import SignalView, deviation

_LAB = "small models with one fault each (docs/causes.md)"

_USUAL, _MULTIPLIED, _STEADY = 1.2, 1.4, 1.6
"""Times the usual: less than the first is noise, more than the second is a multiple. A constant
multiple of a loss varies by less than the third in 8 records; a spike that decays by more."""

_MAX_LEAD = 16
"""Records between an onset that is dated to an odd gradient and the fault: twice the lead of a
warning, which may itself follow a warning."""


@observation("The loss rises at once and comes back", source="detection thresholds of 6 sigma")
def loss_burst(loss: SignalView) -> Seen | None:
    """Is the loss far off within four records, and back soon after?"""
    later = loss.median(24, 64)
    later = loss.median(8, 24) if later is None else later
    if later is None:
        return None
    high = loss.sigmas(float(loss.after[:4].max()))
    return Seen(high > 4 and loss.sigmas(later) < 1, f"loss {high:.1f} sigma up, then back")


@observation("The loss moves to a higher level at once", source=_LAB)
def loss_level_up(loss: SignalView) -> Seen | None:
    """Is the loss higher from the onset on, and still after it?"""
    first, later = loss.median(0, 8), loss.median(16, 48)
    if first is None or later is None:
        return None
    text = f"loss {number(loss.usual)} before, {number(first)} at first, {number(later)} later"
    return Seen(loss.sigmas(first) > 1.5 and loss.sigmas(later) > 1, text)


@observation("The loss rises slowly", source=_LAB)
def loss_creeps_up(loss: SignalView) -> Seen | None:
    """Is the loss as usual at the onset and clearly higher later?"""
    first, later = loss.median(0, 4), loss.median(32, 64)
    if first is None or later is None:
        return None
    text = f"loss {number(loss.usual)} before, {number(first)} at first, {number(later)} later"
    return Seen(loss.sigmas(first) < 1.5 and loss.sigmas(later) > 1, text)


@observation("The loss falls far", source="duplicate batches and leaks: one-sided rules miss them")
def loss_fell(loss: SignalView) -> Seen | None:
    """Is the loss far below its usual level soon after the onset?"""
    soon, later = loss.median(0, 8), loss.median(16, 48)
    if soon is None:
        return None
    low = min(soon, soon if later is None else later)
    return Seen(loss.sigmas(low) < -2.5, f"loss {number(loss.usual)} before, {number(low)} after")


def _first_multiplied(signal: SignalView, spread: float = math.inf) -> int:
    """The record from which on the signal is a multiple of the usual, if it became so at once.

    The onset may be dated to an odd gradient a few records earlier.
    """
    ratios = signal.after / signal.usual if signal.usual else signal.after
    for at in range(1, min(_MAX_LEAD, len(ratios) - 8) + 1):
        low, high = ratios[at : at + 8].min(), ratios[at : at + 8].max()
        if ratios[at - 1] < _USUAL and low > _MULTIPLIED and high < spread * low:
            return at
    return 0


@observation("Loss and gradient norm are multiplied at once", source=_LAB)
def loss_multiplied(loss: SignalView, grad_norm: SignalView) -> Seen | None:
    """Are all losses and gradient norms from the onset on a multiple of the usual ones?"""
    if len(loss.after) < 8:
        return None
    at = min(_first_multiplied(loss, _STEADY), len(grad_norm.after) - 1)
    low, low_norm = (item.ratio(float(item.after[at:][:8].min())) for item in (loss, grad_norm))
    text = f"lowest of 8 records: loss {low:.2g} times, norm {low_norm:.2g} times the usual"
    return Seen(low > _MULTIPLIED and low_norm > _MULTIPLIED, text)


@observation("The gradient norm is multiplied at once and stays so", source=_LAB)
def gradient_multiplied(grad_norm: SignalView) -> Seen | None:
    """Is every gradient norm larger by about the same factor?"""
    at = _first_multiplied(grad_norm)
    first, later = grad_norm.median(at, at + 8), grad_norm.median(at + 16, at + 48)
    if first is None or later is None or first <= 0:
        return None
    low = grad_norm.ratio(float(grad_norm.after[at : at + 8].min()))
    text = f"gradient norm {grad_norm.ratio(first):.2g} times the usual, later "
    text += f"{grad_norm.ratio(later):.2g} times"
    return Seen(low > _MULTIPLIED and 0.7 < later / first < 1.4, text)


@observation("The gradient norm is large for a few records", source="norm over 3 times its median")
def gradient_burst(grad_norm: SignalView) -> Seen | None:
    """Is the norm several times the usual one, then back?"""
    later = grad_norm.median(6, 22)
    if later is None:
        return None
    high = grad_norm.peak(4)
    return Seen(high > 3 and grad_norm.ratio(later) < 1.7, f"gradient norm {high:.3g} times usual")


@observation("The gradient norm is beyond any batch", source="bad data reaches about 40 times")
def gradient_huge(grad_norm: SignalView) -> Seen:
    """Is the norm over 100 times the usual one?"""
    high = grad_norm.peak(len(grad_norm.after))
    return Seen(high > 100, f"gradient norm {high:.3g} times the usual at most")


@observation("Large gradient norms come and go", source="a bad device fails at some steps")
def gradient_intermittent(grad_norm: SignalView) -> Seen | None:
    """Are there at least three separate bursts, with usual norms between them?"""
    if len(grad_norm.after) < 32:
        return None
    high = grad_norm.after > 4 * grad_norm.usual
    bursts = int((high[1:] & ~high[:-1]).sum()) + int(high[0])
    usual = float((grad_norm.after < 2 * grad_norm.usual).mean())
    return Seen(bursts >= 3 and usual > 0.5, f"{bursts} separate bursts of the gradient norm")


@observation("The gradient norm grows", source=_LAB)
def gradient_grows(grad_norm: SignalView) -> Seen | None:
    """Is the norm later clearly larger than at the onset?"""
    first, later = grad_norm.median(0, 8), grad_norm.median(40, 64)
    if first is None or later is None or first <= 0:
        return None
    return Seen(later > 1.3 * first, f"gradient norm {number(first)}, later {number(later)}")


@observation("The gradient norm falls at once", source=_LAB)
def gradient_fell(grad_norm: SignalView) -> Seen | None:
    """Is the norm smaller from the onset on?"""
    first = grad_norm.median(0, 8)
    if first is None:
        return None
    ratio = grad_norm.ratio(first)
    fell = ratio < 0.9 and grad_norm.sigmas(first) < -1.5
    return Seen(fell, f"gradient norm {ratio:.2g} times the usual")


@observation("Loss and gradient norm become noisier", source="noise goes as 1/sqrt(batch size)")
def noisier(loss: SignalView, grad_norm: SignalView) -> Seen | None:
    """Do the changes from record to record grow, without a change of the level?"""
    if min(len(loss.after), len(grad_norm.after)) < 32:
        return None
    ratios = [
        deviation(np.diff(item.after)) / deviation(np.diff(item.before))
        for item in (loss, grad_norm)
    ]
    text = f"changes from record to record: loss {ratios[0]:.2g}, norm {ratios[1]:.2g} times usual"
    return Seen(min(ratios) > 1.3 and max(ratios) < 4, text)
