"""Observations on Adam's moments and on the updates."""

from trimtab.core.findings import Symptom
from trimtab.explain.evidence.check import number
from trimtab.explain.evidence.observation import Seen, observation
from trimtab.explain.evidence.signal_view import SignalView

_LAB = "small models with one fault each (docs/causes.md)"


@observation("The second moment falls at once", source="v falls 10 times when its state is lost")
def v_fell(v_norms: tuple[SignalView, ...]) -> Seen:
    """Is the norm of v of all or of some parameters clearly lower at the onset than before it?"""
    return _fell(v_norms, 0.9)


@observation("The second moment rises at once", source=_LAB)
def v_rose(adam_v_norm: SignalView) -> Seen:
    """Is the norm of v soon far higher than before?"""
    ratio = float(adam_v_norm.after[:4].max() / max(adam_v_norm.before[-1], 1e-30))
    return Seen(ratio > 1.3, f"norm of the second moment {ratio:.3g} times the one before")


@observation("The first moment falls at once", source="a lost first moment starts at zero")
def m_fell(m_norms: tuple[SignalView, ...]) -> Seen:
    """Is the norm of m of all or of some parameters clearly lower at the onset than before it?"""
    return _fell(m_norms, 0.85)


def _fell(norms: tuple[SignalView, ...], limit: float) -> Seen:
    lowest = min(norms, key=lambda item: item.jump())
    fell = lowest.jump() < limit and lowest.jump_sigmas() < -6
    return Seen(fell, f"{lowest.name} {lowest.jump():.3g} times the one before")


@observation("The second moment falls in some groups only", source=_LAB)
def v_fell_in_part(v_norms: tuple[SignalView, ...]) -> Seen | None:
    """Does it fall in one group of parameters, and not in all?"""
    groups = [item for item in v_norms if "/" in item.name]
    if len(groups) < 2:
        return None
    fell = [item.name for item in groups if item.jump() < 0.9 and item.jump_sigmas() < -6]
    return Seen(0 < len(fell) < len(groups), f"{len(fell)} of {len(groups)} groups fall")


@observation("The optimizer's step count goes back", source="Adam counts from 0 without its state")
def count_back(adam_step: SignalView) -> Seen:
    """Does Adam's count fall?"""
    then, now = float(adam_step.before[-1]), float(adam_step.after[0])
    return Seen(now < then, f"the optimizer's step count {number(then)} -> {number(now)}")


@observation("Updates become larger than the learning rate explains", source=_LAB)
def updates_grew(update_per_lr: SignalView) -> Seen:
    """Is the update per learning rate soon far above its usual size?"""
    high = float(update_per_lr.after[:4].max())
    grew = update_per_lr.ratio(high) > 1.3 and update_per_lr.sigmas(high) > 6
    return Seen(grew, f"update per learning rate {update_per_lr.ratio(high):.3g} times the usual")


@observation("Updates become smaller than the learning rate explains", source=_LAB)
def updates_shrank(update_per_lr: SignalView) -> Seen | None:
    """Is the update per learning rate clearly below its usual size, and stays there?"""
    first = update_per_lr.median(0, 8)
    if first is None:
        return None
    shrank = update_per_lr.ratio(first) < 0.85 and update_per_lr.sigmas(first) < -4
    return Seen(shrank, f"update per learning rate {update_per_lr.ratio(first):.3g} times usual")


@observation("Gradients outgrow the second moment", source="RMS of g^2/v: StableAdamW")
def gradient_over_v(grad_to_v_rms: SignalView) -> Seen:
    """Is the ratio of gradient to second moment soon far above its usual value?"""
    high = grad_to_v_rms.peak(4)
    return Seen(high > 2, f"gradient to second moment {high:.3g} times the usual")


@observation("Gradients are small against second moment and epsilon", source=_LAB)
def gradient_under_v(grad_to_v_rms: SignalView) -> Seen | None:
    """Is the ratio of gradient to second moment far below its usual value?"""
    first = grad_to_v_rms.median(0, 8)
    if first is None:
        return None
    ratio = grad_to_v_rms.ratio(first)
    return Seen(ratio < 0.75, f"gradient to second moment {ratio:.3g} times the usual")


@observation(
    "A group's update is exactly zero",
    source="gradient over 0 and update 0: not updating",
    symptoms=(Symptom.FROZEN,),
)
def group_frozen(update_norms: tuple[SignalView, ...]) -> Seen | None:
    """Does any group of parameters stop, while others go on?"""
    still = [v.name for v in update_norms if v.usual > 0 and not v.after[:8].any()]
    moving = [v for v in update_norms if v.after[:8].any()]
    if not moving:
        return Seen(bool(still), "no group is updated")
    return Seen(bool(still), f"{', '.join(still) or 'no group'} at zero")


@observation("Gradients keep one direction", source="cosine of gradient and momentum: duplicates")
def one_direction(grad_momentum_cosine: SignalView) -> Seen | None:
    """Do gradients agree with the momentum far more than before?"""
    first = grad_momentum_cosine.median(1, 9)
    if first is None:
        return None
    high = grad_momentum_cosine.sigmas(first) > 4
    return Seen(high, f"cosine {number(grad_momentum_cosine.usual)} before, {number(first)} after")
