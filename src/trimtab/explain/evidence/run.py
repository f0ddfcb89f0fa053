"""Observations on what the run is fed and runs on: batches, resumes, precision, time, ranks."""

import numpy as np

from trimtab.core.events import SLOW_RANK
from trimtab.core.findings import Symptom
from trimtab.core.signals import FINGERPRINT, LOSS_SCALE
from trimtab.core.text import counted, digits
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.checks import Observed, repeated_losses
from trimtab.explain.evidence.observation import SignalView, YesNo, deviation, observation

_NEAR = 8

_GAP = 4.0
"""Deviations between losses before and after a resume. Source: that of a burst of the loss."""


@observation("One batch follows itself", source="equal fingerprints", signal=FINGERPRINT)
def batch_repeated(context: IncidentContext) -> YesNo | None:
    """Are two batches in a row near the onset equal?"""
    # Not a `SignalView`: a run may repeat its batch from the first step on.
    near = slice(max(context.onset_row - _NEAR, 0), context.onset_row + _NEAR)
    column = context.block.column(FINGERPRINT)[near]
    prints = column.values[column.finite]
    if len(prints) < 2:
        return None
    count = int((np.diff(prints) == 0).sum())
    return count > 0, f"{count} of {len(prints) - 1} batches equal the one before"


@observation("Batches from long before come again", source="equal fingerprints")
def batches_come_again(fingerprint: SignalView, context: IncidentContext) -> YesNo:
    """Were batches from the onset on served more than a few records before it?"""
    column = context.block.column(FINGERPRINT)[: max(context.onset_row - 1, 0)]
    known = column.values[column.finite]
    first = fingerprint.after[:_NEAR]
    count = int((np.isin(first, known) & (first != fingerprint.before[-1])).sum())
    return count > 1, f"{count} of the {len(first)} batches at the onset were served before"


@observation(
    "The run resumes or goes back at the onset",
    source="resume events, step and data position",
    symptoms=(Symptom.WENT_BACK, Symptom.DATA_BACK),
)
def resumes(resumed: Observed) -> YesNo:
    return resumed.is_yes, resumed.observation


@observation(
    "The loss does not continue after a resume",
    source="first losses after a resume off by over 0.002: Marin",
    symptoms=(Symptom.RESUME_GAP,),
)
def resume_gap(resumed: Observed, loss: SignalView, context: IncidentContext) -> YesNo | None:
    """Are the first losses higher than before, at the same steps where they are repeated?"""
    now = float(np.median(loss.soon(4)))
    onset = context.onset_row
    _, earlier = repeated_losses(context, slice(onset, onset + len(loss.soon(4))))
    usual = float(np.median(earlier)) if len(earlier) else loss.usual
    gap = (now - usual) / loss.noise
    if not resumed.is_yes or gap < -_GAP:  # `loss_fell` says what a lower one means
        return None
    at = "at the same steps before" if len(earlier) else "before"
    return gap > _GAP, f"loss {digits(usual)} {at}, {digits(now)} after"


@observation(
    "Step or data position are not those expected",
    source="counters",
    symptoms=(Symptom.WENT_BACK, Symptom.DATA_BACK),
    signal="step",
)
def order_broken(context: IncidentContext) -> YesNo:
    return False, "step and data position only go forward"


@observation("The batch has rare tokens", source="rarity +0.9 to +7.6: rare-token batches")
def rare_tokens(token_rarity: SignalView, resumed: Observed) -> YesNo | None:
    if resumed.is_yes:  # the counts of tokens begin anew at a resume
        return None
    high = token_rarity.sigmas(float(token_rarity.soon(4).max()))
    return high > 6, f"token rarity {high:.1f} sigma above the usual"


@observation("The batch repeats few tokens", source="repeated n-grams: OLMo 2")
def few_distinct_tokens(unique_token_share: SignalView) -> YesNo:
    low = unique_token_share.sigmas(float(unique_token_share.soon(4).min()))
    return low < -4.5, f"share of distinct tokens {low:.1f} sigma from the usual"


@observation(
    "The kind of text changes for good",
    source="token statistics of a mix",
    symptoms=(Symptom.TEXT_CHANGED,),
)
def text_changed(
    token_rarity: SignalView, unique_token_share: SignalView, resumed: Observed
) -> YesNo | None:
    """Do token statistics move to another level?"""
    if resumed.is_yes or len(token_rarity.after) < 32:
        return None
    moves = []
    for item in (token_rarity, unique_token_share):
        early = item.before[: max(len(item.before) // 2, 4)]  # the onset may be late
        moves.append(abs(float(np.median(item.after) - np.median(early))) / deviation(early))
    text = f"rarity moves by {moves[0]:.1f}, distinct tokens by {moves[1]:.1f} deviations"
    return max(moves) > 1, text


@observation("The number of tokens per step changes", source="batch or sequence-length change")
def tokens_changed(tokens: SignalView) -> YesNo | None:
    """Do steps near the onset differ in their number of tokens for more than a few records?"""
    counts = np.concatenate((tokens.before, tokens.after))
    if (np.diff(counts) > 0).all():  # the tokens of the whole run so far
        return None
    differ = float((np.abs(counts / tokens.usual - 1) > 0.05).mean())
    text = f"tokens per step {digits(float(counts.min()))} to {digits(float(counts.max()))}"
    return differ > 0.1, text


# Precision, time and ranks.


@observation(
    "The loss scale never moves",
    source="a dynamic scale grows every 2,000 steps",
    symptoms=(Symptom.SCALE_FROZEN,),
)
def scale_frozen(loss_scale: SignalView) -> YesNo:
    return False, "the loss scale moves"


@observation("The run is fp16", source="bf16 and fp32 have the range that fp16 lacks")
def half_precision(dtype: str) -> YesNo:
    is_half = dtype == "fp16"
    return is_half, f"{'The' if is_half else 'the'} run is {dtype}"


@observation(
    "The loss scale falls",
    source="3 halvings in 100 steps: detection survey",
    symptoms=(Symptom.SCALE_COLLAPSE, Symptom.OVERFLOWS),
)
def scale_fell(loss_scale: SignalView, context: IncidentContext) -> YesNo | None:
    scale = context.during(LOSS_SCALE)
    if not scale.finite.any():
        return None
    lowest = float(scale.values[scale.finite].min())
    highest = float(loss_scale.before.max())
    return lowest <= highest / 8, f"loss scale {digits(highest)} -> {digits(lowest)}"


@observation(
    "A stalled step opens the incident",
    source="detector of stalled steps; steps of a shared machine stall in any incident",
    symptoms=(Symptom.STALL,),
    opening=True,
)
def stalls(step_seconds: SignalView) -> YesNo:
    return False, f"a step takes {digits(step_seconds.usual)} s"


@observation(
    "Slower steps open the incident",
    source="detector of the throughput",
    symptoms=(Symptom.SLOW,),
    opening=True,
)
def slower(step_seconds: SignalView) -> YesNo:
    return False, f"a step takes {digits(step_seconds.usual)} s"


@observation("Slow steps wait for data", source="data-wait share: detection survey")
def waits_for_data(data_seconds: SignalView, step_seconds: SignalView) -> YesNo:
    data = np.concatenate((data_seconds.before[-16:], data_seconds.after[:16]))
    steps = np.concatenate((step_seconds.before[-16:], step_seconds.after[:16]))
    longest = float(data.max())
    share = longest / max(float(steps.max()), 1e-9)
    return longest > 10 * data_seconds.usual and share > 0.5, f"waits {digits(longest)} s"


@observation("Several ranks train together", source="one process cannot be out of step with itself")
def several_ranks(ranks: int, context: IncidentContext) -> YesNo:
    """Is there more than one process?"""
    slow = [
        f"; rank {e.facts.get('rank')} ({e.facts.get('host')}) takes {e.facts.get('times')} times "
        "as long as the others"
        for e in context.block.events
        if e.kind == SLOW_RANK
    ]
    return ranks > 1, counted(ranks, "rank") + "".join(slow[-1:])
