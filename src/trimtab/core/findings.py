"""Finding: one symptom at one step, as a detector saw it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """How much a finding asks for."""

    INFO = 0
    """Worth a line in the record."""
    WARN = 1
    """A precursor: something may come of it."""
    ALARM = 2
    """An incident is open."""


class Symptom(StrEnum):
    """What kind of thing was seen."""

    NONFINITE_LOSS = "non-finite loss"
    NONFINITE_GRAD_NORM = "non-finite gradient norm"
    NONFINITE_NORM = "non-finite weight or optimizer norm"
    LOSS_SPIKE = "loss spike"
    RISING_LOSS = "loss rising without a break"
    SCALE_COLLAPSE = "loss scale collapsed"
    GRADIENT_SPIKE = "gradient norm spike"
    UPDATE_SPIKE = "update norm spike"
    STALE_MOMENT = "second moment behind the gradient"
    LEVEL_SHIFT = "loss level rose"
    REFERENCE_GAP = "left its reference"
    OTHER_BATCH = "batch is not the reference's"
    NO_LEARNING = "no learning"
    MISSING_LOSS = "loss no longer recorded"
    WENT_BACK = "step went back"
    DATA_BACK = "data position went back"
    REPEATED_BATCH = "batch served again"
    OVERFLOWS = "frequent overflow"
    SCALE_FROZEN = "loss scale never moves"
    LR_JUMP = "learning rate jumped"
    LR_RISING = "learning rate rising in its decay"
    FROZEN = "parameters not updating"
    NORM_DRIFT = "weight norm drifting"
    RESUME_GAP = "loss does not continue after the resume"
    STATE_LOST = "optimizer state lost"
    STALL = "stalled step"
    SLOW = "throughput fell"
    UPDATE_SHIFT = "updates of another size"
    ACTIVATION_JUMP = "activations jumped"
    LARGE_LOGITS = "attention logits too large"
    ODD_TOKENS = "tokens unlike those before"


HARMLESS = frozenset({Symptom.STALL, Symptom.SLOW, Symptom.MISSING_LOSS, Symptom.SCALE_FROZEN})
"""What costs time or sight, but does nothing to the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One symptom at one step."""

    detector: str
    symptom: Symptom
    severity: Severity
    signal: str
    step: int
    tick: int
    value: float
    """What was recorded; may be NaN or infinite."""
    expected: float | None = None
    """What the detector's baseline said, where it has one."""
    limit: float | None = None
    """The value beyond which it is a finding, where there is one."""
    onset_tick: int | None = None
    """Where it seems to have begun, if that was earlier than this record."""
    confidence: float = 1.0
    """How far the recorded values can be trusted: 1 for raw ones, less for smoothed or inferred."""
    false_per_10k: float | None = None
    """False episodes of this detector per 10,000 points of healthy public runs, where measured."""
    facts: Mapping[str, float] = field(default_factory=dict)
