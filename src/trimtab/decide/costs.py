"""Where an incident may come from, and how likely each remedy fixes it.

The class of an incident is not known when it is time to act, and the named cause is often wrong so
early. So the ladder weighs four origins, by family of symptoms and by what was tried before.
"""

import dataclasses
import math
from collections.abc import Mapping
from enum import StrEnum

from trimtab.decide.readings import Reading
from trimtab.decide.situation import SKIPPING, Act, Situation
from trimtab.decide.symptoms import STATE_FAMILIES, Family, traits_of


class Origin(StrEnum):
    """Where the cause is."""

    TRANSIENT = "transient"
    """In the state, and gone: a flipped bit, a lost moment."""
    DATA = "data"
    """In the batches: it comes again with them."""
    SETTINGS = "settings"
    """In a setting that differs from the snapshot's: it comes again unless held."""
    LASTING = "lasting"
    """In the code, the precision, the design or a device: it comes again."""


_T, _D, _S, _L = Origin.TRANSIENT, Origin.DATA, Origin.SETTINGS, Origin.LASTING

_PRIORS: Mapping[Family, Mapping[Origin, float]] = {
    Family.RESUME: {_T: 8, _L: 1},
    Family.RATE: {_S: 20, _L: 1},
    Family.NONFINITE: {_T: 5, _D: 2, _L: 3},
    Family.OPTIMIZER: {_T: 6, _D: 1, _L: 2},
    Family.ACTIVATIONS: {_T: 6, _D: 2, _L: 2},
    Family.WEIGHTS: {_T: 6, _D: 0.5, _L: 3},
    Family.LOSS: {_T: 3, _D: 5, _L: 1},
}
"""Odds before anything was tried. Source: how many faults of the catalogue with this family of
symptoms have this origin; only their order matters much."""

_UNDATED = {_T: 0.5, _D: 8.0, _L: 1.0}
"""Odds of harm that only a probe has found: a transient would have shown as a jump."""

_DIFFERENCE_ODDS = 20.0
"""Of a setting that changed unannounced before an alarm. Source: it was the cause in 15 of 15 runs
of the lab; 20 leaves room for coincidence."""

_ODD_BATCH_FACTOR = 4.0
"""A batch far above the usual loss speaks for the data."""

_SOURCE_FACTOR = 10.0
"""A source that came with the trouble and hardly came before speaks for the data. Chosen."""

_BEYOND_DATA_SIGMAS, _BEYOND_DATA_FACTOR = 4.0, 0.02
"""Harm of this many deviations of the probe per step since the onset speaks against the data.
Source: 48 steps of garbage did 0.016 nat a step, a flipped weight 0.12 and more; healthy readings
differ by 0.02 to 0.03."""

_CURES: Mapping[Act, Mapping[Origin, float]] = {
    Act.HOLD: {_S: 0.95},
    Act.RESTORE: {_T: 0.8, _S: 0.95},
    Act.RESTORE_AND_SKIP: {_T: 0.8, _S: 0.95, _D: 0.7},
    Act.QUARANTINE: {_T: 0.8, _S: 0.95, _D: 0.9},
    Act.LOWER_LR: {_T: 0.8, _S: 0.95, _D: 0.2, _L: 0.1},
    Act.RELAUNCH: {_T: 0.9, _L: 0.2},
}
"""Chance that an act ends the trouble. A restore may land after the true onset (0.8); a bad source
may go on after the batches that were skipped (0.7)."""

_LOWER_LR_CURES_LOSS = 0.4
"""Chance that a lower rate ends spikes of the loss that come again and again. Source: textbook,
"LR down 2 to 3x when spikes recur"; not measured."""

_SKIP_CURES_SOURCE = 0.3
"""Chance that skipping ends harm by data that only a probe has found: that is a source rather than
a batch, and it probably goes on."""

_DEVICE_ODDS, _RELAUNCH_CURES_DEVICE = 20.0, 0.9
"""Of a device that computes wrongly, where one rank alone differs from the others; and the chance
that a relaunch without it ends the trouble."""

FACT, SEVERAL, ALONE = 0.95, 0.9, 0.2
"""Certainty that something is wrong: a fact, several signals, one signal that left its range.
Source: of 24 healthy runs, two had an act by one signal and none by two."""


def certainty_of(*, has_fact: bool, num_signals: int, has_difference: bool) -> float:
    """Return how likely it is that something is wrong, by the kind of evidence."""
    if has_fact or has_difference:
        return FACT
    return SEVERAL if num_signals > 1 else ALONE


def chance_of_cure(act: Act, situation: Situation, reading: Reading | None) -> float:
    """Return how likely an act ends the trouble, after what was tried before."""
    priors = _PRIORS.get(situation.family, _PRIORS[Family.LOSS])
    odds = dict(priors if situation.symptoms or situation.rise is None else _UNDATED)
    if situation.suspect_rank is not None:
        odds[Origin.LASTING] = _DEVICE_ODDS
    if situation.unplanned:
        odds[Origin.SETTINGS] = _DIFFERENCE_ODDS
    if Origin.DATA in odds and situation.batch_was_odd:
        odds[Origin.DATA] *= _ODD_BATCH_FACTOR
    if Origin.DATA in odds and situation.source is not None:
        odds[Origin.DATA] *= _SOURCE_FACTOR
    if Origin.DATA in odds and _is_beyond_data(situation, reading):
        odds[Origin.DATA] *= _BEYOND_DATA_FACTOR
    # What a remedy should have cured and did not is less likely by the chance that it failed.
    for earlier in situation.tried:
        cures = _cures(earlier, situation)
        odds = {origin: odd * (1 - cures.get(origin, 0.0)) for origin, odd in odds.items()}
    cures = _cures(act, situation)
    return sum(odd * cures.get(origin, 0.0) for origin, odd in odds.items()) / sum(odds.values())


def _is_beyond_data(situation: Situation, reading: Reading | None) -> bool:
    """Return whether the weights are hurt more than batches could do in that time."""
    if situation.has_broken_weights:
        return True  # the gate keeps out every update that could make a weight infinite
    if reading is None:
        return False
    steps = max(situation.step - situation.onset, 1)
    return not reading.excess <= _BEYOND_DATA_SIGMAS * reading.sigma * steps


def _cures(act: Act, situation: Situation) -> Mapping[Origin, float]:
    cures = _CURES.get(act, {})
    if act is Act.LOWER_LR and situation.family is Family.LOSS:
        return {**cures, Origin.LASTING: _LOWER_LR_CURES_LOSS}
    if act is Act.RELAUNCH and situation.suspect_rank is not None:
        return {**cures, Origin.LASTING: _RELAUNCH_CURES_DEVICE}
    if act is Act.RESTORE_AND_SKIP and not situation.symptoms:
        return {**cures, Origin.DATA: _SKIP_CURES_SOURCE}
    return cures


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
    """Return the expected cost of an act in steps, with up to `ahead` remedies in case it fails."""
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
    """Return the first step that a relaunch repeats."""
    if situation.suspect_rank is not None:  # what it did wrong did not reach the weights
        return max(situation.slots, default=None)
    return situation.resumed_at if situation.family is Family.RESUME else situation.target


def _next_best(act: Act, situation: Situation, reading: Reading | None, ahead: int) -> float:
    """Return the cost of going on once the act has failed: the next remedy, or a person."""
    if not ahead:
        return STOP_STEPS
    failed = dataclasses.replace(
        situation,
        tried=(*situation.tried, act),
        recurrences=situation.recurrences + 1,
        last_depth=situation.depth,
    )
    # A person can always be called, so nothing costs more than a stop.
    return min(STOP_STEPS, *(cost(after, failed, reading, ahead - 1) for after in _REMEDIES))


def shows_in_loss(situation: Situation) -> bool:
    """Return whether the loss shows it too, so that a probe can settle it."""
    families = {traits_of(symptom).family for symptom in situation.symptoms}
    return bool(families & {Family.LOSS, Family.NONFINITE})


def _growth(situation: Situation) -> float:
    """Return the factor by which the harm grows until a person intervenes."""
    if situation.symptoms:
        return 1.0
    return 1.0 + GOES_ON * HORIZON_STEPS / max(situation.step - situation.onset, 1)


def _rate_rose(situation: Situation) -> bool:
    """Return whether the rate is higher than before, or its difference is not known."""
    rates = [part for part in situation.unplanned if part.name.endswith("lr")]
    return not rates or any(part.after > part.before for part in rates)


def _steps(situation: Situation, nats: float) -> float:
    if not nats:
        return 0.0
    slope = DEFAULT_SLOPE if situation.slope is None else max(situation.slope, MIN_SLOPE)
    return STAYS * nats / slope
