"""Action: what to do about an incident."""

from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    """The kinds of action, mildest first."""

    WAIT = "wait"
    DISCARD = "discard"
    SKIP = "skip"
    ROLL_BACK = "roll back"
    LOWER_LR = "lower LR"
    QUARANTINE = "quarantine"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do, and why."""

    kind: ActionKind
    instruction: str
    """The action in one sentence, with its numbers."""
    reason: str
