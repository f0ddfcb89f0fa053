"""What each symptom says: its family, how late its onset is judged, whether it is a fact.

One table for advice (what people read) and for the ladder (what a run does by itself).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab.core.findings import NOT_RESTORED, Symptom


class Family(StrEnum):
    """Symptoms that call for the same remedy; where several show, the first one decides."""

    RESUME = "resume"
    RATE = "learning rate"
    NONFINITE = "non-finite"
    OPTIMIZER = "optimizer state"
    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    LOSS = "loss"
    GRADIENT = "gradient"
    OTHER = "other"
    """Observations on batches, and what a user's detector reports."""
    SLOW = "slow"
    """Costs time or hides the loss; does not touch the weights."""


STATE_FAMILIES = frozenset({Family.OPTIMIZER, Family.ACTIVATIONS, Family.WEIGHTS})
"""Learning suffers while the loss may look normal."""

PASSIVE = frozenset({Family.GRADIENT, Family.OTHER, Family.SLOW})
"""Nothing is done about these alone."""

DATED, BY_LOSS, BY_PERSISTENCE = 1, 8, 24
"""Steps between the judged onset and the newest snapshot that is surely older than the fault.
Source: in the lab, onsets of rates, non-finite numbers and jumps of the state were judged at most 1
step late, those of the loss up to 8, those found by persistence (frozen, rising rate) 8 to 15."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of a symptom before any run."""

    family: Family
    margin: int = BY_LOSS
    is_fact: bool = False
    """Whether it is so, whatever the noise of the run; else a signal left its usual range."""
    is_slow: bool = False
    """Whether it is found by persistence and may be a turn of the run itself."""


TRAITS: Mapping[str, Traits] = {
    Symptom.NONFINITE_LOSS: Traits(family=Family.NONFINITE, margin=DATED, is_fact=True),
    Symptom.NONFINITE_GRAD_NORM: Traits(family=Family.NONFINITE, margin=DATED, is_fact=True),
    Symptom.NONFINITE_NORM: Traits(family=Family.NONFINITE, margin=DATED, is_fact=True),
    Symptom.SCALE_COLLAPSE: Traits(family=Family.NONFINITE, margin=BY_PERSISTENCE, is_fact=True),
    Symptom.OVERFLOWS: Traits(family=Family.NONFINITE),
    Symptom.LOSS_SPIKE: Traits(family=Family.LOSS),
    Symptom.RISING_LOSS: Traits(family=Family.LOSS, margin=BY_PERSISTENCE, is_slow=True),
    Symptom.LEVEL_SHIFT: Traits(family=Family.LOSS, margin=BY_PERSISTENCE, is_slow=True),
    Symptom.REFERENCE_GAP: Traits(family=Family.LOSS, is_fact=True),
    Symptom.NO_LEARNING: Traits(
        family=Family.LOSS, margin=BY_PERSISTENCE, is_fact=True, is_slow=True
    ),
    Symptom.GRADIENT_SPIKE: Traits(family=Family.GRADIENT),
    Symptom.UPDATE_SPIKE: Traits(family=Family.GRADIENT),
    Symptom.STALE_MOMENT: Traits(family=Family.OPTIMIZER, margin=DATED),
    Symptom.STATE_LOST: Traits(family=Family.OPTIMIZER, margin=DATED, is_fact=True),
    Symptom.UPDATE_SHIFT: Traits(family=Family.OPTIMIZER, margin=DATED),
    Symptom.ACTIVATION_JUMP: Traits(family=Family.ACTIVATIONS, margin=DATED),
    Symptom.LARGE_LOGITS: Traits(family=Family.ACTIVATIONS, margin=BY_PERSISTENCE, is_slow=True),
    Symptom.FROZEN: Traits(family=Family.WEIGHTS, margin=BY_PERSISTENCE, is_fact=True),
    Symptom.NORM_DRIFT: Traits(family=Family.WEIGHTS, margin=BY_PERSISTENCE, is_slow=True),
    Symptom.LR_JUMP: Traits(family=Family.RATE, margin=DATED, is_fact=True),
    Symptom.LR_RISING: Traits(family=Family.RATE, margin=BY_PERSISTENCE, is_fact=True),
    Symptom.RESUME_GAP: Traits(family=Family.RESUME, margin=DATED),
    Symptom.WENT_BACK: Traits(family=Family.RESUME, margin=DATED),
    Symptom.DATA_BACK: Traits(family=Family.RESUME, margin=DATED, is_fact=True),
    **{
        symptom: Traits(family=Family.RESUME, margin=DATED, is_fact=True)
        for symptom in sorted(NOT_RESTORED)
    },
    # Changed on purpose, as far as can be known: a warning for a person.
    Symptom.LR_CHANGED: Traits(family=Family.SLOW, margin=DATED),
    Symptom.OPTIONS_CHANGED: Traits(family=Family.SLOW, margin=DATED),
    Symptom.REPEATED_BATCH: Traits(family=Family.OTHER, is_fact=True),
    Symptom.OTHER_BATCH: Traits(family=Family.OTHER, is_fact=True),
    Symptom.ODD_TOKENS: Traits(family=Family.OTHER),
    Symptom.TEXT_CHANGED: Traits(family=Family.OTHER),
    Symptom.MISSING_LOSS: Traits(family=Family.SLOW),
    Symptom.SCALE_FROZEN: Traits(family=Family.SLOW),
    Symptom.STALL: Traits(family=Family.SLOW),
    Symptom.SLOW: Traits(family=Family.SLOW),
}

_UNKNOWN = Traits(family=Family.OTHER)


def traits_of(symptom: str) -> Traits:
    """Return the traits of a symptom; those of an observation if a user's detector reports it."""
    return TRAITS.get(symptom, _UNKNOWN)


def family_of(symptoms: Collection[str]) -> Family:
    """Return the family that decides; the loss if there is no symptom but a probe's reading."""
    families = {traits_of(symptom).family for symptom in symptoms}
    return next((family for family in Family if family in families), Family.LOSS)


def margin_of(symptoms: Collection[str]) -> int:
    """Return the margin before the onset: the largest of the family that decides."""
    family = family_of(symptoms)
    margins = [t.margin for t in map(traits_of, symptoms) if t.family is family]
    return max(margins, default=BY_PERSISTENCE)
