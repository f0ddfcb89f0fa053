"""Finding: one symptom at one step, as a detector saw it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """How serious a finding is."""

    INFO = 0
    """Worth knowing, no more."""
    WARN = 1
    """A possible precursor of an incident."""
    ALARM = 2
    """Opens an incident."""


class Symptom(StrEnum):
    """The symptoms that trimtab's detectors report. A user's detector may use any string."""

    HARMED_STATE = "weights or optimizer harmed"
    REPLICAS_DIFFER = "replicas differ"
    NONFINITE_LOSS = "non-finite loss"
    NONFINITE_GRAD_NORM = "non-finite gradient norm"
    NONFINITE_NORM = "non-finite weight or optimizer norm"
    LOSS_SPIKE = "loss spike"
    RISING_LOSS = "loss rising steadily"
    SCALE_COLLAPSE = "loss scale collapsed"
    GRADIENT_SPIKE = "gradient norm spike"
    UPDATE_SPIKE = "update norm spike"
    STALE_MOMENT = "second moment lags the gradient"
    LEVEL_SHIFT = "loss level rose"
    REFERENCE_GAP = "left its reference"
    NO_LEARNING = "no learning"
    MISSING_LOSS = "loss no longer recorded"
    WENT_BACK = "step went back"
    DATA_BACK = "data position went back"
    REPEATED_BATCH = "repeated batch"
    OVERFLOWS = "frequent overflow"
    SCALE_FROZEN = "loss scale never changes"
    LR_JUMP = "learning rate jumped"
    LR_RISING = "learning rate rising during decay"
    FROZEN = "parameters not updating"
    NORM_DRIFT = "weight norm drifting"
    RESUME_GAP = "loss does not continue after a resume"
    STATE_RESET = "optimizer state reset"
    STALL = "stalled step"
    SLOW = "throughput fell"
    UPDATE_SHIFT = "update size changed"
    ACTIVATION_JUMP = "activations jumped"
    LARGE_LOGITS = "attention logits too large"
    EXPERT_COLLAPSE = "one expert gets nearly all tokens"
    DEAD_EXPERTS = "experts get no tokens"
    EXPERT_DRIFT = "one expert gets more and more tokens"
    ODD_TOKENS = "tokens unlike those before"
    TEXT_CHANGED = "kind of text changed"
    WRONG_CHECKPOINT = "weights of a different checkpoint"
    MOMENTS_NOT_RESTORED = "optimizer moments not restored"
    OPTIMIZER_STEP_NOT_RESTORED = "optimizer step not restored"
    LR_RESTARTED = "learning rate restarted at a resume"
    LR_CHANGED = "learning rate changed at a resume"
    OPTIONS_CHANGED = "optimizer options changed at a resume"
    SCALER_NOT_RESTORED = "loss scaler not restored"
    DATA_RESTARTED = "data restarted at a resume"
    DATA_OFF = "data does not continue after a resume"
    RNG_NOT_RESTORED = "random state not restored"
    REWARD_FELL = "reward fell"
    REWARD_HACKED = "reward up, held-out reward down"
    KL_JUMP = "KL divergence multiplied"
    ENTROPY_FELL = "entropy collapsed"
    ENTROPY_ROSE = "entropy jumped up"
    LENGTH_ROSE = "responses much longer"
    LENGTH_FELL = "responses much shorter"
    TRUNCATION = "responses cut at the length limit"
    NO_SIGNAL = "no learning signal in the groups"
    ROLLOUT_GAP = "rollouts and policy differ"
    ADVANTAGES_JUMPED = "advantages multiplied"
    VALUE_USELESS = "value function worse than a constant"
    GRADIENT_DIED = "gradient almost zero"
    NO_TARGETS = "no label counts"
    HELD_OUT_ROSE = "held-out loss up, training loss down"


NOT_RESTORED = frozenset(
    {
        Symptom.WRONG_CHECKPOINT,
        Symptom.MOMENTS_NOT_RESTORED,
        Symptom.OPTIMIZER_STEP_NOT_RESTORED,
        Symptom.LR_RESTARTED,
        Symptom.SCALER_NOT_RESTORED,
        Symptom.DATA_RESTARTED,
        Symptom.DATA_OFF,
        Symptom.RNG_NOT_RESTORED,
    }
)
"""What a resume has left out: to be loaded again, whatever the loss does."""

NOT_FINITE = frozenset({Symptom.NONFINITE_LOSS, Symptom.NONFINITE_GRAD_NORM})
"""What the gate always discards, so it cannot be in the weights of a protected run."""

OF_POLICY = frozenset(
    {
        Symptom.REWARD_FELL,
        Symptom.REWARD_HACKED,
        Symptom.KL_JUMP,
        Symptom.ENTROPY_FELL,
        Symptom.ENTROPY_ROSE,
        Symptom.LENGTH_ROSE,
        Symptom.LENGTH_FELL,
        Symptom.TRUNCATION,
        Symptom.NO_SIGNAL,
        Symptom.ROLLOUT_GAP,
        Symptom.ADVANTAGES_JUMPED,
        Symptom.VALUE_USELESS,
    }
)
"""What the signals of reinforcement learning show."""

HARMLESS = frozenset({Symptom.STALL, Symptom.SLOW, Symptom.MISSING_LOSS, Symptom.SCALE_FROZEN})
"""What costs time or hides the loss, but does not touch the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The cause of a finding, where its detector knows it. Ours leave it to the evidence."""

    cause_id: str
    """Short and stable, such as "ACME-3". An id of ours (F01 to F24) names that cause."""
    cause_title: str
    remedy: str
    """What to do about it, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One symptom at one step."""

    detector: str
    """Name of the detector that found it."""
    symptom: str
    """A `Symptom`, or any string from a user's detector."""
    severity: Severity
    signal: str
    """The signal that shows it."""
    step: int
    tick: int
    value: float
    """The recorded value; may be NaN or infinite."""
    expected: float | None = None
    """What the detector expected, where it has a baseline."""
    limit: float | None = None
    """The value beyond which it is a finding, if it has one."""
    onset_tick: int | None = None
    """Where it seems to have begun, if earlier than this record."""
    confidence: float = 1.0
    """How far the recorded values can be trusted: 1 if raw, less if smoothed or inferred."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Further numbers behind it, by name."""
    explanation: Explanation | None = None
    """Its cause, where the detector knows it."""

    @property
    def forecast(self) -> str:
        """When the signal arrives at a value that ends the run, where the detector can say it."""
        if "arrival" not in self.facts:
            return ""
        names = ("arrival_value", "arrival", "arrival_low", "arrival_high")
        value, at, low, high = (self.facts[name] for name in names)
        return f"reaches {value:g} about step {at:,.0f} (90 % range {low:,.0f} to {high:,.0f})"
