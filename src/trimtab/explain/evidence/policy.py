"""Observations on a policy: what moved first, at once or slowly, and what did not move.

What they say about the causes R01 to R12 is in `base_rates.json`: shares chosen from what a cause
is, looked at on two seeds of `trimtab lab rl`.
"""

import numpy as np

from trimtab.core.findings import Symptom
from trimtab.core.signals import EVAL_REWARD, REWARD
from trimtab.core.text import digits
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.observation import SignalView, YesNo, observation

_LAB = "GRPO of a small model with one fault each (docs/rl.md)"

_AT_ONCE, _LATER = 4, 24
"""Records in which a setting or a bug shows, and those in which a policy drifts."""

_FAR = 4.0
"""Deviations of single values. Chosen: a mean of four values is then off by eight standard
errors."""


def _first(view: SignalView) -> float:
    return float(np.median(view.soon(_AT_ONCE)[:_AT_ONCE]))


def _last(view: SignalView) -> float:
    return float(np.median(view.after[-8:]))


def _text(view: SignalView) -> str:
    return (
        f"{view.name} {digits(view.usual)} before, {digits(_first(view))} at first, "
        f"{digits(_last(view))} later"
    )


def _jumps(view: SignalView, sign: int, share: float) -> YesNo:
    """Return whether a signal is off at once, by its noise and by a share of its level."""
    moved = sign * (_first(view) - view.usual)
    is_off = sign * view.sigmas(_first(view)) > _FAR and moved > share * abs(view.usual)
    return is_off, _text(view)


def _drifts(view: SignalView, sign: int, share: float) -> YesNo:
    """Return whether a signal is off later, and was not at once."""
    moved = sign * (_last(view) - view.usual)
    is_off = sign * view.sigmas(_last(view)) > _FAR and moved > share * abs(view.usual)
    return is_off and not _jumps(view, sign, share)[0], _text(view)


@observation("The learning rate is multiplied", source=_LAB)
def policy_rate_up(lr: SignalView) -> YesNo:
    return lr.ratio(_first(lr)) >= 2 or lr.ratio(_last(lr)) >= 2, _text(lr)


@observation("KL is multiplied at once", source=_LAB)
def kl_at_once(kl: SignalView) -> YesNo:
    return _jumps(kl, 1, 2.0)


@observation("KL grows far", source=_LAB)
def kl_grows(kl: SignalView) -> YesNo:
    return _drifts(kl, 1, 1.0)


def _gap_limit(gap: SignalView) -> float:
    """Return the gap from which on engine and trainer differ. Chosen, above rounding."""
    return 0.05 + 2 * gap.usual


def _differs_at_once(gap: SignalView) -> bool:
    """Return whether the gap is large from the onset on, and was not on its way before."""
    first = float(np.median(gap.soon(2)[:2]))
    return first > _gap_limit(gap) and float(gap.before[-_AT_ONCE:].max()) < 0.25 * first


@observation("Engine and trainer differ at once, and stay so", source=_LAB)
def gap_at_once(logprob_gap: SignalView) -> YesNo | None:
    return _differs_at_once(logprob_gap), _text(logprob_gap)


@observation("Engine and trainer drift apart", source=_LAB)
def gap_grows(logprob_gap: SignalView) -> YesNo:
    is_large = float(logprob_gap.soon(_LATER).max()) > _gap_limit(logprob_gap)
    return is_large and not _differs_at_once(logprob_gap), _text(logprob_gap)


@observation("Engine and trainer agree again from time to time", source=_LAB)
def gap_returns(logprob_gap: SignalView) -> YesNo | None:
    """Does the gap of log-probabilities fall back to what it was, after it had grown?"""
    gap = logprob_gap.after
    high = float(gap.max())
    if high < _gap_limit(logprob_gap) or len(gap) < _LATER:
        return None
    later = gap[int(np.argmax(gap > 0.5 * high)) :]
    low = float(later.min())
    return low < 0.1 * high, f"logprob_gap falls from {digits(high)} to {digits(low)}"


@observation("The reward falls at once", source=_LAB, symptoms=())
def reward_at_once(reward: SignalView) -> YesNo:
    moved = reward.usual - _first(reward)
    return moved > 0.3 * abs(reward.usual) and reward.sigmas(_first(reward)) < -2, _text(reward)


@observation("The reward rises at once", source=_LAB)
def reward_up_at_once(reward: SignalView) -> YesNo:
    moved = _first(reward) - reward.usual
    return moved > 0.2 * abs(reward.usual) and reward.sigmas(_first(reward)) > 2, _text(reward)


@observation("All rewards are equal", source="a verifier that fails gives everybody the same")
def rewards_equal(context: IncidentContext) -> YesNo | None:
    """Are the mean rewards from where it shows on all the same number?"""
    reward = context.block.column(REWARD)[context.shown_row :]
    values = reward.values[reward.finite][:16]
    if len(values) < _AT_ONCE:
        return None
    latest = values[-_AT_ONCE:]
    return bool(np.ptp(latest) == 0), f"reward {digits(float(latest[-1]))} in every record"


@observation("Groups have no signal", source="equal rewards", symptoms=(Symptom.NO_SIGNAL,))
def no_signal(no_signal_share: SignalView) -> YesNo:
    return _last(no_signal_share) > 0.85, _text(no_signal_share)


@observation("Responses are cut at once", source=_LAB)
def cut_at_once(truncated_share: SignalView) -> YesNo:
    return _first(truncated_share) > truncated_share.usual + 0.15, _text(truncated_share)


@observation("No response is as long as they were", source="a length limit")
def length_capped(response_length: SignalView) -> YesNo:
    after = response_length.after[1:8] if len(response_length.after) > 4 else response_length.after
    return float(after.max()) < float(response_length.before.min()), _text(response_length)


@observation("Responses grow longer", source=_LAB)
def length_grows(response_length: SignalView) -> YesNo:
    last = _last(response_length)
    return last > 1.25 * response_length.usual and response_length.sigmas(last) > 3, _text(
        response_length
    )


@observation("Entropy jumps at once", source="a verifier does not change what is written")
def entropy_at_once(entropy: SignalView) -> YesNo:
    is_higher, text = _jumps(entropy, 1, 0.15)
    lowest = min(0.3 * entropy.usual, float(entropy.before.min()))
    return is_higher or _first(entropy) < lowest, text


@observation("Entropy grows", source=_LAB)
def entropy_grows(entropy: SignalView) -> YesNo:
    return _drifts(entropy, 1, 0.15)


@observation("Entropy falls", source=_LAB, symptoms=(Symptom.ENTROPY_FELL,))
def entropy_falls(entropy: SignalView, context: IncidentContext) -> YesNo:
    finding = context.first_finding(Symptom.ENTROPY_FELL)
    forecast = f"; {finding.forecast}" if finding and finding.forecast else ""
    return _last(entropy) < 0.5 * entropy.usual, _text(entropy) + forecast


@observation("Advantages are multiplied", source=_LAB, symptoms=(Symptom.ADVANTAGES_JUMPED,))
def advantages_multiplied(advantage_std: SignalView) -> YesNo:
    return float(advantage_std.soon(8).max()) > 3 * float(advantage_std.before.max()), _text(
        advantage_std
    )


@observation(
    "Held-out results fall while the reward rises", source=_LAB, symptoms=(Symptom.REWARD_HACKED,)
)
def held_out_falls(reward: SignalView, context: IncidentContext) -> YesNo | None:
    """Are held-out results a fifth lower than at the onset, and is the reward higher?"""
    before, after = _evaluations(context)
    if len(before) < 1 or len(after) < 1:
        return None
    usual, now = float(np.median(before[-3:])), float(after[-1])
    text = f"held-out {digits(usual)} before, {digits(now)} later; {_text(reward)}"
    return now < 0.8 * usual and _last(reward) > reward.usual, text


@observation("Held-out results stay while the reward falls", source=_LAB)
def held_out_stays(reward: SignalView, context: IncidentContext) -> YesNo | None:
    before, after = _evaluations(context)
    if len(before) < 1 or len(after) < 1 or _last(reward) > 0.8 * reward.usual:
        return None
    usual, now = float(np.median(before[-3:])), float(np.max(after[:2]))
    return now > 0.85 * usual, f"held-out {digits(usual)} before, {digits(now)} later"


def _evaluations(context: IncidentContext) -> tuple[np.ndarray, np.ndarray]:
    column = context.block.column(EVAL_REWARD)
    row = context.onset_row
    return column.values[:row][column.finite[:row]], column.values[row:][column.finite[row:]]
