"""Expected costs, all in steps of training, so that they can be compared.

wait        what the harm takes to be learnt again: nats / (fall of the loss per step)
restore     the steps since the snapshot, and what remains if it does not help
stop        the time until a person has restarted the run
"""

import dataclasses
import math

from trimtab.decide.ladder.origins import chance_of_cure
from trimtab.decide.ladder.reading import Reading
from trimtab.decide.ladder.situation import SKIPPING, Act, Situation
from trimtab.decide.symptoms import STATE_FAMILIES, Family, traits_of

PROBE_STEPS = 8 / 3
"""8 forward passes; a forward pass is a third of a step."""

STOP_STEPS = 400.0
"""A restart by hand 200 steps later loses 209 steps in the lab, and nothing trains meanwhile."""

RELAUNCH_STEPS = 5.0
"""Loading a checkpoint and starting processes, beside the steps since the checkpoint."""

CHECKPOINT_STEPS = 200.0
"""Steps since the last good checkpoint, where no snapshot says how many. Source: as many as a
restart by hand loses."""

SKIP_STEPS = 12.0
"""Leaving out batches moves the final loss by up to 0.02 nat either way, at a slope of 0.0017 a
step; it also makes the run incomparable with what it would have been."""

LOWER_LR_STEPS = 50.0
"""Half the rate for 50 steps and 100 steps of return: the integral of the missing share."""

HORIZON_STEPS = 200.0
"""How long trouble would go on before a person looks. Source: the textbook's "look again"."""

STATE_SHARE = 0.5
"""Share of the learning that is lost while the optimizer's state or settings are wrong. Source:
0.10 to 0.29 of the 0.35 nat that were left to learn (frozen, epsilon, decay)."""

STAYS = 0.85
"""Chance that harm read from a probe is still there in the end. Source: 23 of 27 runs called hurt
after 8 steps, 26 of 29 after 32."""

GOES_ON = 0.9
"""Chance that harm which only a probe has found goes on at the same pace. Source: it did in all
runs of the lab with a different data mix; 0.9 leaves room for what has passed."""

UNSEEN_HARM = 0.15
"""Expected harm in nats of an incident of the loss before any reading. Source: half of 65 runs
without a remedy were hurt, by 0.3 nat in the middle."""

LOOK_AHEAD = 1
"""Remedies considered after one that fails; the rungs above cost about as much as a stop."""

_REMEDIES = (Act.RESTORE, Act.RESTORE_AND_SKIP)

MIN_SLOPE, DEFAULT_SLOPE = 1e-6, 1e-3
"""Fall of the loss per step: a floor for runs that do not learn, and a guess before it is known."""


def harm(situation: Situation, reading: Reading | None) -> float:
    """Steps lost if nothing is done, given that something is wrong; inf if the run is lost."""
    if situation.has_broken_weights and not situation.recurrences:
        return math.inf  # whatever a probe reads: few batches may meet the weight that is broken
    seen = _seen_harm(situation, reading)
    if situation.is_stuck:  # nothing is learnt, and what a restore did not end goes on
        return math.inf if situation.recurrences else max(seen, HORIZON_STEPS)
    # Of a device that computes wrongly only a part shows.
    return seen if situation.suspect_rank is None else max(seen, STATE_SHARE * HORIZON_STEPS)


def _seen_harm(situation: Situation, reading: Reading | None) -> float:
    family = situation.family
    if family in (Family.SLOW, Family.OTHER, Family.GRADIENT):
        return 0.0 if reading is None else _steps(situation, reading.excess)
    if reading is not None and not math.isfinite(reading.value):
        return math.inf
    if reading is not None and not reading.is_healthy and situation.recurrences > 1:
        return math.inf  # it comes again from a restored state, and the weights are hurt
    if family is Family.RATE and not _rate_rose(situation):
        return 0.0  # schedules lower the rate; holding it up would do the harm
    if family in STATE_FAMILIES | {Family.RATE, Family.RESUME}:
        learning = STATE_SHARE * HORIZON_STEPS
        if reading is None:
            return learning
        if reading.is_healthy and (situation.recurrences or shows_in_loss(situation)):
            return 0.0
        return max(learning, _steps(situation, reading.excess))
    if reading is None:
        return _steps(situation, UNSEEN_HARM)
    found = _steps(situation, reading.excess) * _growth(situation)
    if situation.rise is None or reading.is_healthy:
        return found
    # Known batches get worse and worse: what is trained until a person looks is trained in vain.
    return math.inf if situation.text_changed else max(found, GOES_ON * HORIZON_STEPS)


def harm_so_far(situation: Situation) -> float:
    """Steps lost already by settings that are wrong since the onset, if they are put right now."""
    since = situation.step - situation.onset
    apart = max((part.ratio for part in situation.unplanned), default=math.inf)
    return since * (apart - 1) if since > 0 else 0.0


def cost(act: Act, situation: Situation, reading: Reading | None, ahead: int = LOOK_AHEAD) -> float:
    """The expected cost of an act in steps; `ahead` remedies are considered in case it fails."""
    real = situation.certainty
    left_alone = harm(situation, reading)
    if act is Act.WAIT:
        return real * left_alone if real and left_alone else 0.0
    if act is Act.PROBE:
        return PROBE_STEPS
    if act is Act.STOP:
        return STOP_STEPS
    fails = 1 - chance_of_cure(act, situation, reading)
    rest = real * fails * min(left_alone, _next_best(act, situation, reading, ahead))
    if act is Act.HOLD:
        return harm_so_far(situation) + rest
    if act is Act.RELAUNCH:
        began = _relaunch_from(situation)
        lost = CHECKPOINT_STEPS if began is None else situation.step - began
        return lost + RELAUNCH_STEPS + rest
    if situation.target is None:
        return math.inf
    price = SKIP_STEPS if act in SKIPPING else LOWER_LR_STEPS if act is Act.LOWER_LR else 0.0
    return situation.step - situation.target + price + rest


def _relaunch_from(situation: Situation) -> int | None:
    """The step from which on a relaunch does steps again."""
    if situation.suspect_rank is not None:  # what it did wrong did not reach the weights
        return max(situation.slots, default=None)
    return situation.resumed_at if situation.family is Family.RESUME else situation.target


def _next_best(act: Act, situation: Situation, reading: Reading | None, ahead: int) -> float:
    """The cost of going on once the act has failed: the next remedy, or a person."""
    if not ahead:
        return STOP_STEPS
    failed = dataclasses.replace(
        situation,
        tried=(*situation.tried, act),
        recurrences=situation.recurrences + 1,
        last_depth=situation.depth,
    )
    return min(STOP_STEPS, *(cost(after, failed, reading, ahead - 1) for after in _REMEDIES))


def shows_in_loss(situation: Situation) -> bool:
    """Whether the loss shows it too, so that a probe can settle it."""
    families = {traits_of(symptom).family for symptom in situation.symptoms}
    return bool(families & {Family.LOSS, Family.NONFINITE})


def _growth(situation: Situation) -> float:
    """How much larger the harm gets until a person looks: what no detector dates goes on."""
    if situation.symptoms:
        return 1.0
    return 1.0 + GOES_ON * HORIZON_STEPS / max(situation.step - situation.onset, 1)


def _rate_rose(situation: Situation) -> bool:
    """Whether the rate is higher than before, or its difference is not known."""
    rates = [part for part in situation.unplanned if part.name.endswith("lr")]
    return not rates or any(part.after > part.before for part in rates)


def _steps(situation: Situation, nats: float) -> float:
    if not nats:
        return 0.0
    slope = DEFAULT_SLOPE if situation.slope is None else max(situation.slope, MIN_SLOPE)
    return STAYS * nats / slope
