"""The catalogue of faults, and hypotheses with the evidence for and against them."""

from dataclasses import dataclass
from enum import Enum, StrEnum


class Cause(Enum):
    """A fault that can cause an incident. The ids are stable: JSON and docs use them.

    The lab can cause all of them, and trimtab's rules can name all of them.
    """

    HARD_BATCH = "F01", "hard batch", "a hard batch"
    RARE_TOKENS = "F02", "long-tail or degenerate tokens"
    DUPLICATE_BATCH = "F03", "duplicate batch or epoch wrap", "a duplicate batch or an epoch wrap"
    DATA_MIX_SHIFT = "F04", "data-mix shift", "a data-mix shift"
    LR_DISCONTINUITY = "F05", "learning-rate discontinuity", "a jump of the learning rate"
    OPTIMIZER_STATE_LOST = "F06", "optimizer state lost", "a lost optimizer state"
    STALE_SECOND_MOMENT = (
        "F07",
        "stale second moment (beta2 too high)",
        "a stale second moment (beta2 too high)",
    )
    EPSILON_REGIME = "F08", "epsilon regime", "an epsilon that is too large"
    ATTENTION_LOGIT_GROWTH = "F09", "attention-logit growth", "growing attention logits"
    OUTPUT_LOGIT_DRIFT = "F10", "output-logit drift", "drifting output logits"
    FP16_OVERFLOW = "F11", "fp16 overflow or scale collapse", "an fp16 overflow"
    LOGIC_NAN = (
        "F12",
        "NaN in the forward pass (log 0, 0/0, full mask)",
        "a NaN from the forward pass",
    )
    BIT_FLIP = "F13", "transient bit flip", "a transient bit flip"
    BAD_DEVICE = "F14", "bad device", "a bad device"
    REPLICAS_OUT_OF_SYNC = "F15", "replicas out of sync"
    LOADER_STALL = "F16", "loader stall", "a stalled loader"
    SLOW_RANK = "F17", "slow rank", "a slow rank"
    WRONG_RESUME = (
        "F18",
        "wrong checkpoint, RNG or data position",
        "a wrong checkpoint, RNG or data position",
    )
    PARAMETERS_NOT_UPDATING = "F19", "parameters not updating", "parameters that do not update"
    BATCH_SIZE_CHANGE = (
        "F20",
        "batch or sequence-length change (no fault)",
        "a change of the batch or sequence length",
    )
    LR_TOO_HIGH = "F21", "learning rate too high", "a learning rate that was too high"
    LOSS_REDUCTION_BUG = "F22", "loss-reduction bug", "a bug in the loss reduction"
    WEIGHT_DECAY = (
        "F23",
        "weight decay too low or too high",
        "a weight decay that is too low or too high",
    )
    WRONG_SCHEDULE = "F24", "schedule wrong", "a wrong schedule"
    POLICY_STEP_SIZE = (
        "R01",
        "learning rate or KL weight wrong",
        "a wrong learning rate or KL weight",
    )
    STALE_ROLLOUT_WEIGHTS = "R02", "stale or mismatched rollout weights"
    SAMPLING_MISMATCH = (
        "R03",
        "temperature or masking differs between rollout and training",
        "a temperature or mask that differs between rollout and training",
    )
    REWARD_BUG = "R04", "verifier or reward bug", "a bug in the verifier or the reward"
    DATA_DIFFICULTY = "R05", "prompts too easy or too hard", "prompts that are too easy or too hard"
    LENGTH_BIAS = "R06", "length bias", "a length bias"
    LENGTH_LIMIT = "R07", "responses truncated", "truncated responses"
    OFF_POLICY = "R08", "off-policy by asynchrony"
    ADVANTAGE_NORMALISATION = (
        "R09",
        "advantage normalisation wrong",
        "a wrong normalisation of advantages",
    )
    WRONG_REFERENCE = "R10", "reference model wrong", "a wrong reference model"
    TEMPLATE_BUG = "R11", "padding or template bug", "a bug in padding or template"
    REWARD_HACKING = "R12", "reward hacking"

    title: str
    """The fault in a few words."""
    phrase: str
    """The fault as a part of a sentence: "the cause was a hard batch"."""

    def __new__(cls, id: str, title: str, phrase: str = "") -> "Cause":
        """Create a member whose value is its id, so that `Cause("F11")` finds it."""
        member = object.__new__(cls)
        member._value_ = id
        member.title = title
        member.phrase = phrase or title
        return member

    @property
    def id(self) -> str:
        """Its id in the catalogue, such as F11."""
        return str(self.value)

    @property
    def label(self) -> str:
        """Its id and title, for JSON and tables of people who know the catalogue."""
        return f"{self.id} {self.title}"

    @property
    def is_of_policy(self) -> bool:
        """Whether it belongs to reinforcement learning."""
        return self.id.startswith("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCause:
    """A cause that is not in the catalogue, named by a user's detector."""

    id: str
    title: str

    @property
    def phrase(self) -> str:
        """The cause as a part of a sentence."""
        return self.title

    @property
    def label(self) -> str:
        """Its id and title; an id that is words of the title already says nothing more."""
        is_words = set(self.id.split("-")) & set(self.title.split())
        return self.title if is_words else f"{self.id} {self.title}"


AnyCause = Cause | UserCause


def cause_of(id: str, title: str) -> AnyCause:
    """Return the cause of the catalogue with this id, or a user's cause."""
    known = {cause.id: cause for cause in Cause}
    return known.get(id) or UserCause(id=id, title=title)


class Standing(StrEnum):
    """What the evidence says about a hypothesis."""

    SUPPORTED = "supported"
    OPEN = "open"
    RULED_OUT = "ruled out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation and what it says about one hypothesis."""

    signal: str
    """The signal, event or setting that was checked."""
    observation: str
    favors: bool | None
    """True for, False against, None if it could not be checked."""
    weight: float | None = None
    """How much it says, as a log likelihood ratio; None if it was not weighed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A possible cause of one incident, with the evidence for and against it."""

    cause: AnyCause | None
    """None for a mechanism that is not itself a fault of the catalogue."""
    statement: str
    standing: Standing
    evidence: tuple[Evidence, ...]
    probability: float | None = None
    """None if it was not weighed against the others."""
