"""Observations on the model and its optimizer: moments, updates, weights, activations, logits."""

import math

import numpy as np

from trimtab.core.findings import Finding, Symptom
from trimtab.core.text import digits
from trimtab.explain.evidence.observation import SignalView, YesNo, observation

_LAB = "small models with one fault each (docs/detection.md)"


@observation("The second moment falls at once", source="v falls 10 times when its state is lost")
def v_fell(v_norms: tuple[SignalView, ...]) -> YesNo:
    return _fell(v_norms, 0.9)


@observation("The second moment rises at once", source=_LAB)
def v_rose(adam_v_norm: SignalView) -> YesNo:
    ratio = float(adam_v_norm.soon(4).max() / max(adam_v_norm.before[-1], 1e-30))
    return ratio > 1.3, f"norm of the second moment {ratio:.3g} times the one before"


@observation("The first moment falls at once", source="a lost first moment starts at zero")
def m_fell(m_norms: tuple[SignalView, ...]) -> YesNo:
    return _fell(m_norms, 0.85)


def _fell(norms: tuple[SignalView, ...], limit: float) -> YesNo:
    lowest = min(norms, key=lambda item: item.jump())
    fell = lowest.jump() < limit and lowest.jump_sigmas() < -6
    return fell, f"{lowest.name} {lowest.jump():.3g} times the one before"


@observation("The second moment falls in some groups only", source=_LAB)
def v_fell_in_part(v_norms: tuple[SignalView, ...]) -> YesNo | None:
    groups = [item for item in v_norms if "/" in item.name]
    if len(groups) < 2:
        return None
    fell = [item.name for item in groups if item.jump() < 0.9 and item.jump_sigmas() < -6]
    return 0 < len(fell) < len(groups), f"{len(fell)} of {len(groups)} groups fall"


@observation("The optimizer's step count goes back", source="Adam counts from 0 without its state")
def count_back(adam_step: SignalView) -> YesNo:
    then, now = float(adam_step.before[-1]), float(adam_step.after[0])
    return now < then, f"the optimizer's step count {digits(then)} -> {digits(now)}"


@observation("Updates become larger than the learning rate explains", source=_LAB)
def updates_grew(update_per_lr: SignalView) -> YesNo:
    high = float(update_per_lr.soon(4).max())
    grew = update_per_lr.ratio(high) > 1.3 and update_per_lr.sigmas(high) > 6
    return grew, f"update per learning rate {update_per_lr.ratio(high):.3g} times the usual"


@observation("Updates become smaller than the learning rate explains", source=_LAB)
def updates_shrank(update_per_lr: SignalView) -> YesNo:
    first = update_per_lr.median(0, 8)
    shrank = update_per_lr.ratio(first) < 0.85 and update_per_lr.sigmas(first) < -4
    return shrank, f"update per learning rate {update_per_lr.ratio(first):.3g} times usual"


@observation("Gradients outgrow the second moment", source="RMS of g^2/v: StableAdamW")
def gradient_over_v(grad_to_v_rms: SignalView) -> YesNo:
    high = grad_to_v_rms.peak(4)
    return high > 2, f"gradient to second moment {high:.3g} times the usual"


@observation("Gradients are small against second moment and epsilon", source=_LAB)
def gradient_under_v(grad_to_v_rms: SignalView) -> YesNo:
    ratio = grad_to_v_rms.ratio(grad_to_v_rms.median(0, 8))
    return ratio < 0.75, f"gradient to second moment {ratio:.3g} times the usual"


@observation(
    "A group's update is exactly zero",
    source="gradient over 0 and update 0: not updating",
    symptoms=(Symptom.FROZEN,),
)
def group_frozen(update_norms: tuple[SignalView, ...]) -> YesNo | None:
    still = [v.name for v in update_norms if v.usual > 0 and not v.after[:8].any()]
    moving = [v for v in update_norms if v.after[:8].any()]
    if not moving:
        return bool(still), "no group is updated"
    return bool(still), f"{', '.join(still) or 'no group'} at zero"


@observation("Gradients keep one direction", source="cosine of gradient and momentum: duplicates")
def one_direction(grad_momentum_cosine: SignalView) -> YesNo:
    first = grad_momentum_cosine.median(1, 9)
    high = grad_momentum_cosine.sigmas(first) > 4
    return high, f"cosine {digits(grad_momentum_cosine.usual)} before, {digits(first)} after"


# Weights, activations and logits.

_GROWTH = 0.001
"""Growth per record beyond what was before. Source: healthy small models grow under 0.1 % a step
after their warm-up; growing attention weights were planted from 0.2 % a step on."""


@observation("Weights change at once, then go on as before", source="a jump of the weight norm")
def weights_jumped(param_norms: tuple[SignalView, ...]) -> YesNo:
    """Does a group's norm jump at the onset, and at no record after it?"""
    worst = max(param_norms, key=lambda v: abs(v.jump_sigmas()))
    jump = worst.jump()
    text = f"{worst.name} {jump:.4g} times at the onset"
    later = np.abs(np.diff(worst.after[:9]))
    size = abs(float(worst.after[0] - worst.before[-1]))
    once = not len(later) or size > 5 * float(later.max())
    is_large = abs(worst.jump_sigmas()) > 15 and abs(math.log(max(jump, 1e-30))) > 0.001
    return is_large and once, text


@observation("Many groups of weights change at once", source=_LAB)
def all_weights_jumped(param_norms: tuple[SignalView, ...]) -> YesNo | None:
    if len(param_norms) < 3:
        return None
    moved = [v.name for v in param_norms if abs(v.jump_sigmas()) > 15]
    return len(moved) >= 3, f"{len(moved)} of {len(param_norms)} groups jump at the onset"


@observation("Weights keep growing faster than before", source=_LAB)
def weights_grow(
    param_norms: tuple[SignalView, ...], norm_drifts: tuple[Finding, ...]
) -> YesNo | None:
    return _growing(param_norms, norm_drifts, "")


@observation("Attention weights grow faster than before", source="attention logits grow with them")
def attention_grows(
    param_norms: tuple[SignalView, ...], norm_drifts: tuple[Finding, ...]
) -> YesNo | None:
    return _growing(param_norms, norm_drifts, "att")


@observation("Gains of norms grow faster than before", source="output logits grow with them")
def gains_grow(
    param_norms: tuple[SignalView, ...], norm_drifts: tuple[Finding, ...]
) -> YesNo | None:
    return _growing(param_norms, norm_drifts, "/norm")


@observation("Weights shrink", source="decay pulls norms to zero: stability guides")
def weights_shrink(param_norms: tuple[SignalView, ...]) -> YesNo | None:
    found = [(g[1], g[1] - g[0], v.name) for v in param_norms if (g := v.growth(16)) is not None]
    if not found:
        return None
    lowest, change, name = min(found)
    shrinks = max(lowest, change) < -_GROWTH
    return shrinks, f"{name} changes by {100 * lowest:.2g} % a record"


def _growing(norms: tuple[SignalView, ...], drifts: tuple[Finding, ...], part: str) -> YesNo | None:
    # A slow trend may have begun long before it was found: its detector knows the growth before.
    for drift in drifts:
        if drift.facts["growth"] > drift.facts["most_before"]:
            text = f"{drift.signal} grows faster than in all of the run before"
            return part in drift.signal, text
    found = [(g[1] - g[0], v.name) for v in norms if (g := v.growth(16)) is not None]
    if not found:
        return None
    highest, name = max(found)
    text = f"{name} grows by {100 * highest:.2g} % a record more than before"
    return highest > _GROWTH and part in name, text


@observation("Activations change at once", source="wrong weights: output of the last block x0.16")
def activations_jumped(activations: tuple[SignalView, ...]) -> YesNo:
    worst = max(activations, key=lambda v: abs(v.sigmas(float(np.median(v.after[:3])))))
    first = float(np.median(worst.after[:3]))
    jumped = abs(worst.sigmas(first)) > 5 and not 0.85 < worst.ratio(first) < 1.15
    return jumped, f"{worst.name} {worst.ratio(first):.3g} times the usual"


@observation("Activations grow", source="block outputs climb 100 steps before fp16 overflows")
def activations_grow(activations: tuple[SignalView, ...]) -> YesNo | None:
    """Is the output of a block much larger later, or did it grow before the onset?"""
    ratios = []
    for item in activations:
        grown = float(item.before[-4:].max() / max(np.median(item.before[:16]), 1e-30))
        later = item.ratio(item.median(32, 64)) if item.has(32, 64) else 0.0
        ratios.append((max(grown, later), item.name))
    highest, name = max(ratios)
    return highest > 1.5, f"{name} grows {highest:.3g} times"


@observation("Activations shrink", source=_LAB)
def activations_shrink(activations: tuple[SignalView, ...]) -> YesNo | None:
    later = [(v.ratio(v.median(16, 48)), v.name) for v in activations if v.has(16, 48)]
    if not later:
        return None
    lowest, name = min(later)
    return lowest < 0.75, f"{name} {lowest:.3g} times the usual at least"


@observation(
    "Attention logits grow",
    source="over 50 to 100: attention collapse",
    symptoms=(Symptom.LARGE_LOGITS,),
)
def attention_logits_grow(max_attention_logit: SignalView) -> YesNo:
    last = float(np.median(max_attention_logit.after[-16:]))
    ratio = max_attention_logit.ratio(last)
    return ratio > 1.8, f"largest attention logit {ratio:.3g} times, at {digits(last)}"


@observation("log Z grows", source="output-logit drift: z-loss papers")
def log_z_grows(max_log_z: SignalView) -> YesNo:
    later = max_log_z.median(32, 64)
    ratio = max_log_z.ratio(later)
    return ratio > 1.2 and max_log_z.sigmas(later) > 3, f"log Z {ratio:.3g} times the usual"
