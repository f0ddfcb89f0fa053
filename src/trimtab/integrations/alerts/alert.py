"""Alert: what a message to people says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class AlertState(StrEnum):
    """Where the matter stands."""

    OPEN = "open"
    CHANGED = "changed"
    CLOSED = "closed"


class Level(StrEnum):
    """How bad it is; three levels, as W&B and trackio have them."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Higher is worse."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One message about one matter; the key stays the same for its whole life."""

    run: str
    matter: str
    """What it is about within the run: "incident-3", "died", "stalled"."""
    state: AlertState
    level: Level
    title: str
    """One line, without the name of the run."""
    text: str = ""
    step: int = 0
    clock: float = 0.0
    """Unix time in seconds."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    link: str = ""

    @property
    def key(self) -> str:
        """The same for all messages about one matter, so that services can join them."""
        return f"trimtab/{self.run}/{self.matter}"

    @property
    def headline(self) -> str:
        """One line with the name of the run."""
        return f"{self.run}: {self.title}"
