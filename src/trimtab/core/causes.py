"""The fault catalogue, and what speaks for and against each fault. Ids are stable."""

from dataclasses import dataclass
from enum import Enum, StrEnum


class Cause(Enum):
    """A fault that can be behind an incident: its id is the member's name."""

    F01 = "hard batch"
    F02 = "long-tail or degenerate tokens"
    F03 = "duplicate batch or epoch wrap"
    F04 = "data-mix shift"
    F05 = "learning-rate discontinuity"
    F06 = "optimizer state lost"
    F07 = "stale second moment (beta2 too high)"
    F08 = "epsilon regime"
    F09 = "attention-logit growth"
    F10 = "output-logit drift"
    F11 = "fp16 overflow or scale collapse"
    F12 = "logic NaN (log 0, 0/0, full mask)"
    F13 = "transient bit flip"
    F14 = "bad device"
    F15 = "replicas out of sync"
    F16 = "loader stall"
    F17 = "slow rank"
    F18 = "wrong checkpoint, RNG or data position"
    F19 = "parameters not updating"
    F20 = "batch or sequence-length change (no fault)"
    F21 = "learning rate too high, structural"
    F22 = "loss-reduction bug"
    F23 = "weight decay too low or too high"
    F24 = "schedule wrong"

    @property
    def title(self) -> str:
        """The fault in words."""
        return self.value


class Standing(StrEnum):
    """Where a hypothesis stands after the evidence."""

    SUPPORTED = "supported"
    OPEN = "open"
    RULED_OUT = "ruled out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation and what it says about one hypothesis."""

    panel: str
    """The signal or event that was looked at."""
    observation: str
    favors: bool | None
    """True for, False against, None if it could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A possible cause of one incident, with the evidence for and against it."""

    cause: Cause | None
    """None for a mechanism that is not itself a fault of the catalogue."""
    statement: str
    standing: Standing
    evidence: tuple[Evidence, ...]
