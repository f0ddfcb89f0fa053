"""Where an incident may come from, and how likely each remedy fixes it.

The class of an incident is not known when it is time to act, and the named cause is often wrong so
early. So the ladder weighs four origins, by family of symptoms and by what was tried before.
"""

from collections.abc import Mapping
from enum import StrEnum

from trimtab.decide.ladder.reading import Reading
from trimtab.decide.ladder.situation import Act, Situation
from trimtab.decide.symptoms import Family


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
    """How likely it is that something is wrong, by the kind of evidence."""
    if has_fact or has_difference:
        return FACT
    return SEVERAL if num_signals > 1 else ALONE


def chance_of_cure(act: Act, situation: Situation, reading: Reading | None) -> float:
    """How likely an act ends the trouble, after what was tried before."""
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
    """Whether the weights are hurt more than batches could do in that time."""
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
