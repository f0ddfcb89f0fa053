"""Observations whose meaning follows from what they are: hardware, still numbers, and a policy.

Two are questions of the stability guides: a gradient far out, and a weight norm that doubles.

What they say about causes is by construction, not fitted (`causes/ranking.py`).
"""

import math
from collections.abc import Mapping

import numpy as np

from trimtab.core.block import Block, FloatArray
from trimtab.core.findings import Symptom
from trimtab.core.signals import EVAL_REWARD, GRAD_NORM, LOSS, LR, PARAM_NORM, REWARD, UPDATE_NORM
from trimtab.core.text import counted, digits, times_text
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.checks import begins_again, nonfinite_loss
from trimtab.explain.evidence.curves import largest_move
from trimtab.explain.evidence.observation import MIN_BEFORE, SignalView, YesNo, observation


@observation("A bit flipped in memory", source="the bits of a tensor, summed before and after")
def bit_flipped(proof_of_hardware: str) -> YesNo:
    """Has the guard found a tensor that changed while no code wrote to it?"""
    return True, proof_of_hardware


RATE_MULTIPLIED = 10.0
"""Times the learning rate of the record before. Chosen: schedules move in steps of 2 to 10."""

_UPDATES = 16
"""Records of the update norm that say how far a step moves the weights; also the most steps that
lie between two records of a weight norm."""

_LARGEST_UPDATE = 100.0
"""Times the usual update. Source: with beta2 = 0.999 a coordinate moves at most 32 times the
learning rate in a step of Adam, and usually 0.2 to 1 times."""


@observation(
    "Weights move further than updates can", source="the bound of Adam's update", signal=PARAM_NORM
)
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


@observation(
    "The learning rate changes at least tenfold in one record",
    source="schedules step by 2 to 10 times",
)
def rate_multiplied(lr: SignalView, context: IncidentContext) -> YesNo:
    """Is one change, up to where the incident shows, a factor that is no step of a schedule?"""
    largest, usual = largest_move(lr)
    is_far = largest >= math.log(RATE_MULTIPLIED) and largest > 3 * usual
    return is_far and not begins_again(context), times_text(math.exp(largest))


LONG_TAIL = 30.0
"""Times the usual gradient norm at one step. Source: the stability guides, question 2.3."""


@observation(
    "The gradient norm is over 30 times the usual as the loss begins to rise",
    source="over 30 times its mean at the spike: tokens of the long tail (stability guides)",
    signal=GRAD_NORM,
)
def gradient_long_tail(context: IncidentContext) -> YesNo | None:
    norms, rows = context.block.column(GRAD_NORM), context.rows_of_rise
    usual, near = norms[max(rows.start - 64, 0) : rows.start], norms[rows]
    if usual.finite.sum() < MIN_BEFORE or not near.finite.any():
        return None
    middle = float(np.median(usual.values[usual.finite]))
    high = float(near.values[near.finite].max())
    return high > LONG_TAIL * middle > 0, f"gradient norm {digits(high)}, usually {digits(middle)}"


@observation(
    "The norm of all weights doubles or halves while the loss rises",
    source="over 2 times in 200 steps: stability guides, question 4.3",
    signal=PARAM_NORM,
)
def weights_doubled(context: IncidentContext, loss: SignalView) -> YesNo | None:
    """Does the norm leave its trend step by step, and not in one jump, as at a wrong load?"""
    limit = context.config
    rows = slice(max(context.onset_row - limit.norm_steps, 0), context.last_row + 1)
    total = _norm_of_all(context.block[rows])
    during = context.during(LOSS)
    losses = during.values[during.finite][-_UPDATES:]
    known = np.isfinite(total) & (total > 0)
    steps, logs = context.block.step[rows][known], np.log(total[known])
    if len(logs) < _UPDATES or len(losses) < _UPDATES:
        return None
    # Each norm beside the last one that is at most so many steps later.
    later = np.searchsorted(steps, steps + limit.norm_steps, side="right") - 1
    at = int(np.argmax(np.abs(logs[later] - logs)))
    then, now = logs[at], logs[later[at]]
    largest = np.abs(np.diff(logs[at : later[at] + 1])).max(initial=0.0)
    moved = abs(float(now - then))
    text = f"weight norm {digits(math.exp(then))} -> {digits(math.exp(now))} "
    text += f"in {int(steps[later[at]] - steps[at])} steps"
    is_gradual = float(largest) < moved / 2
    rises = loss.sigmas(float(np.median(losses))) > 1
    return moved > math.log(limit.norm_ratio) and is_gradual and rises, text


def _norm_of_all(block: Block) -> FloatArray:
    """Return the norm of all weights by record: as recorded, or from those of its groups."""
    if block.column(PARAM_NORM).recorded:
        return block.column(PARAM_NORM).values
    groups = [c for name, c in block.columns.items() if name.startswith(f"{PARAM_NORM}/")]
    norms = [column.values for column in groups if column.recorded]
    return np.hypot.reduce(norms, axis=0) if norms else np.full(len(block), np.nan)


_FEW = 6
"""Records that a statement about all of them needs."""

_PLACES = 64
"""Values at which a period is tried first, and periods that are then tried at all of them."""


@observation("The learning rate is zero", source="a schedule that never starts", signal=LR)
def lr_zero(context: IncidentContext) -> YesNo | None:
    lr = context.block.column(LR)[: context.last_row + 1]
    # A run that never learns is found late: what it had before says as much.
    values = lr.values[lr.finite][-max(int(context.during(LR).finite.sum()), _FEW) :]
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
    for period in _likely_periods(values):
        if np.array_equal(values[period:], values[:-period]):
            if period == 1:
                return True, f"The loss is {digits(float(values[-1]))} in every record"
            return True, f"The same losses come again every {counted(period, 'record')}"
    return False, f"{len(np.unique(values))} different losses in {counted(len(values), 'record')}"


def _likely_periods(values: FloatArray) -> list[int]:
    """Return the shortest periods that some of the values do not rule out: a log may be long."""
    half = len(values) // 2
    periods = np.arange(1, half + 1)
    for place in np.linspace(0, half - 1, _PLACES, dtype=np.int64).tolist():
        periods = periods[values[periods + place] == values[place]]
    return [int(period) for period in periods[:_PLACES]]


@observation(
    "The loss is NaN, and not from an fp16 overflow", source="stability guides, question 1.2"
)
def nan_in_range(dtype: str, context: IncidentContext) -> YesNo | None:
    """Is the loss non-finite in bf16 or fp32, whose range no activation leaves?"""
    found = nonfinite_loss(context)
    if not found.is_yes or dtype == "fp16":
        return None
    return True, f"{found.observation.rpartition(' at ')[2]}, in {dtype}"


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


@observation(
    "Incidents like this one recur", source="a run that spikes again and again", signal="incidents"
)
def recurs(context: IncidentContext) -> YesNo | None:
    """Did several others begin with the same symptom? Fewer say nothing: the run may go on."""
    text = f"{context.similar} others began the same way ({context.incident.symptoms[0]})"
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


@observation("A weight is not finite itself", source="experiment: its tensors")
def weights_nonfinite(experiments: Experiments) -> YesNo | None:
    return _shown(experiments, "first_nonfinite", "weights")


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


# A policy: what moved first, at once or slowly, and what did not move. What these say about the
# causes R01 to R12 is in `base_rates.json`: shares chosen from what a cause is, looked at on two
# seeds of `trimtab lab rl`.


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


def _is_up(view: SignalView, value: float, share: float) -> bool:
    """Return whether a value is above the usual, by its noise and by a share of its level."""
    return view.sigmas(value) > _FAR and value - view.usual > share * abs(view.usual)


def _drifts(view: SignalView, share: float) -> YesNo:
    """Return whether a signal is up later, and was not at once."""
    is_late = _is_up(view, _last(view), share) and not _is_up(view, _first(view), share)
    return is_late, _text(view)


@observation("The learning rate is multiplied", source=_LAB)
def policy_rate_up(lr: SignalView) -> YesNo:
    return lr.ratio(_first(lr)) >= 2 or lr.ratio(_last(lr)) >= 2, _text(lr)


@observation("KL is multiplied at once", source=_LAB)
def kl_at_once(kl: SignalView) -> YesNo:
    return _is_up(kl, _first(kl), 2.0), _text(kl)


@observation("KL grows far", source=_LAB)
def kl_grows(kl: SignalView) -> YesNo:
    return _drifts(kl, 1.0)


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


@observation(
    "All rewards are equal", source="a verifier that fails gives everybody the same", signal=REWARD
)
def rewards_equal(context: IncidentContext) -> YesNo | None:
    """Are the mean rewards from where it shows on all the same number?"""
    reward = context.block.column(REWARD)[context.shown_row :]
    steps = context.block.step[context.shown_row :][reward.finite]
    values = reward.values[reward.finite][:16]
    if len(values) < _AT_ONCE:
        return None
    latest = values[-_AT_ONCE:]
    lowest, highest = float(latest.min()), float(latest.max())
    if lowest < highest:
        return False, f"rewards from {digits(lowest)} to {digits(highest)}"
    others = np.flatnonzero(values != lowest)
    since = int(steps[others[-1] + 1 if len(others) else 0])
    return True, f"reward {digits(lowest)} in every record since step {since:,}"


SHARE_GROWN = 0.25
"""By how much the share of groups without signal must have grown to be what happened. Chosen."""


@observation("Groups have no signal", source="equal rewards", symptoms=(Symptom.NO_SIGNAL,))
def no_signal(no_signal_share: SignalView) -> YesNo:
    """A policy that solves all it is asked has few of them before, too."""
    risen = _last(no_signal_share) - no_signal_share.usual
    return _last(no_signal_share) > 0.85 and risen > SHARE_GROWN, _text(no_signal_share)


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
    first, lowest = _first(entropy), min(0.3 * entropy.usual, float(entropy.before.min()))
    return _is_up(entropy, first, 0.15) or first < lowest, _text(entropy)


@observation("Entropy grows", source=_LAB)
def entropy_grows(entropy: SignalView) -> YesNo:
    return _drifts(entropy, 0.15)


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
