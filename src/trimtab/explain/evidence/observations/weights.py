"""Observations on weights, activations and logits."""

import math

import numpy as np

from trimtab.core.findings import Finding, Symptom
from trimtab.explain.evidence.check import number
from trimtab.explain.evidence.observation import Seen, observation
from trimtab.explain.evidence.signal_view import SignalView

_LAB = "small models with one fault each (docs/causes.md)"
_GROWTH = 0.001
"""Growth per record beyond what was before. Source: healthy small models grow under 0.1 % a step
after their warm-up; growing attention weights were planted from 0.2 % a step on."""


@observation("Weights change at once, then go on as before", source="a jump of the weight norm")
def weights_jumped(param_norms: tuple[SignalView, ...]) -> Seen:
    """Does a group's norm jump at the onset, and at no record after it?"""
    worst = max(param_norms, key=lambda v: abs(v.jump_sigmas()))
    jump = worst.jump()
    text = f"{worst.name} {jump:.4g} times at the onset"
    later = np.abs(np.diff(worst.after[:9]))
    size = abs(float(worst.after[0] - worst.before[-1]))
    once = not len(later) or size > 5 * float(later.max())
    is_large = abs(worst.jump_sigmas()) > 15 and abs(math.log(max(jump, 1e-30))) > 0.001
    return Seen(is_large and once, text)


@observation("Many groups of weights change at once", source=_LAB)
def all_weights_jumped(param_norms: tuple[SignalView, ...]) -> Seen | None:
    """Do at least three groups jump at the onset?"""
    if len(param_norms) < 3:
        return None
    moved = [v.name for v in param_norms if abs(v.jump_sigmas()) > 15]
    return Seen(len(moved) >= 3, f"{len(moved)} of {len(param_norms)} groups jump at the onset")


@observation("Weights keep growing faster than before", source=_LAB)
def weights_grow(
    param_norms: tuple[SignalView, ...], norm_drifts: tuple[Finding, ...]
) -> Seen | None:
    """Does a group's norm grow faster from the onset on?"""
    return _growing(param_norms, norm_drifts, "")


@observation("Attention weights grow faster than before", source="attention logits grow with them")
def attention_grows(
    param_norms: tuple[SignalView, ...], norm_drifts: tuple[Finding, ...]
) -> Seen | None:
    """Is the group that grows fastest the one of the attention?"""
    return _growing(param_norms, norm_drifts, "att")


@observation("Gains of norms grow faster than before", source="output logits grow with them")
def gains_grow(
    param_norms: tuple[SignalView, ...], norm_drifts: tuple[Finding, ...]
) -> Seen | None:
    """Is the group that grows fastest the one of the norms?"""
    return _growing(param_norms, norm_drifts, "/norm")


@observation("Weights shrink", source="decay pulls norms to zero: stability guides")
def weights_shrink(param_norms: tuple[SignalView, ...]) -> Seen | None:
    """Does a group's norm fall from the onset on?"""
    found = [(g[1], g[1] - g[0], v.name) for v in param_norms if (g := v.growth(16)) is not None]
    if not found:
        return None
    lowest, change, name = min(found)
    shrinks = max(lowest, change) < -_GROWTH
    return Seen(shrinks, f"{name} changes by {100 * lowest:.2g} % a record")


def _growing(norms: tuple[SignalView, ...], drifts: tuple[Finding, ...], part: str) -> Seen | None:
    # A slow trend may have begun long before it was found: its detector knows the growth before.
    for drift in drifts:
        if drift.facts["growth"] > drift.facts["most_before"]:
            text = f"{drift.signal} grows faster than in all of the run before"
            return Seen(part in drift.signal, text)
    found = [(g[1] - g[0], v.name) for v in norms if (g := v.growth(16)) is not None]
    if not found:
        return None
    highest, name = max(found)
    text = f"{name} grows by {100 * highest:.2g} % a record more than before"
    return Seen(highest > _GROWTH and part in name, text)


@observation("Activations change at once", source="wrong weights: output of the last block x0.16")
def activations_jumped(activations: tuple[SignalView, ...]) -> Seen:
    """Does the output of a block jump at the onset and stay?"""
    worst = max(activations, key=lambda v: abs(v.sigmas(float(np.median(v.after[:3])))))
    first = float(np.median(worst.after[:3]))
    jumped = abs(worst.sigmas(first)) > 5 and not 0.85 < worst.ratio(first) < 1.15
    return Seen(jumped, f"{worst.name} {worst.ratio(first):.3g} times the usual")


@observation("Activations grow", source="block outputs climb 100 steps before fp16 overflows")
def activations_grow(activations: tuple[SignalView, ...]) -> Seen | None:
    """Is the output of a block much larger later, or did it grow before the onset?"""
    ratios = []
    for item in activations:
        grown = float(item.before[-4:].max() / max(np.median(item.before[:16]), 1e-30))
        later = item.median(32, 64)
        ratios.append((max(grown, 0.0 if later is None else item.ratio(later)), item.name))
    highest, name = max(ratios)
    return Seen(highest > 1.5, f"{name} grows {highest:.3g} times")


@observation("Activations shrink", source=_LAB)
def activations_shrink(activations: tuple[SignalView, ...]) -> Seen | None:
    """Is the output of a block much smaller later?"""
    later = [(v.ratio(m), v.name) for v in activations if (m := v.median(16, 48)) is not None]
    if not later:
        return None
    lowest, name = min(later)
    return Seen(lowest < 0.75, f"{name} falls to {lowest:.3g} times the usual")


@observation(
    "Attention logits grow",
    source="over 50 to 100: attention collapse",
    symptoms=(Symptom.LARGE_LOGITS,),
)
def attention_logits_grow(max_attention_logit: SignalView) -> Seen:
    """Does the largest attention logit multiply?"""
    last = float(np.median(max_attention_logit.after[-16:]))
    ratio = max_attention_logit.ratio(last)
    return Seen(ratio > 1.8, f"largest attention logit {ratio:.3g} times, at {number(last)}")


@observation("log Z grows", source="output-logit drift: z-loss papers")
def log_z_grows(max_log_z: SignalView) -> Seen | None:
    """Does the largest log Z grow beyond its noise?"""
    later = max_log_z.median(32, 64)
    if later is None:
        return None
    ratio = max_log_z.ratio(later)
    return Seen(ratio > 1.2 and max_log_z.sigmas(later) > 3, f"log Z {ratio:.3g} times the usual")
