"""Decision: what to do, why, and what else there was to do."""

from dataclasses import dataclass

from trimtab.decide.ladder.situation import ROLLBACKS, Act, SettingDifference
from trimtab.journal.exit_request import RunExit


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that could be done."""

    act: Act
    cost: float
    """Expected cost in steps of training; inf where the run would be lost."""
    target: int | None = None
    """The step to return to, of an act that restores."""
    skip_from: int | None = None
    """The first step whose batches are skipped; the last is the present one."""
    holds: tuple[SettingDifference, ...] = ()
    """Settings to keep at what they were before."""
    refused: str = ""
    """Why it may not be chosen; empty if it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The option that was chosen, with its reason and the alternatives."""

    chosen: Option
    reason: str
    alternatives: tuple[Option, ...]
    """The other options, cheapest first."""
    look_again: int | None = None
    """Steps since the alarm at which to decide again; None to leave the incident alone."""

    @property
    def act(self) -> Act:
        """What to do."""
        return self.chosen.act

    @property
    def exit_code(self) -> RunExit | None:
        """The exit code of an act that ends the run."""
        return {Act.RELAUNCH: RunExit.RELAUNCH, Act.STOP: RunExit.STOP}.get(self.act)

    @property
    def is_rollback(self) -> bool:
        """Whether the run returns to a snapshot."""
        return self.act in ROLLBACKS
