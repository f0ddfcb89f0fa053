"""Facts of an incident: what is true of it at one record.

`trimtab.explain.verdict` measures them, once; every class, instruction and sentence is made from
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Course(StrEnum):
    """How the gap between a loss and its trend goes on."""

    GROWING = "growing"
    SHRINKING = "shrinking"
    FLAT = "flat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The loss of an incident against the trend from before it; in units of the loss."""

    before: float
    """Level before the onset."""
    expected: float
    """Level that the trend from before leads to expect now."""
    now: float
    """Present level."""
    gap: float
    """The present level above the expected one."""
    smallest: float
    """The smallest gap that could be told from noise here."""
    noise: float
    """Deviation of one record."""
    z: float
    """The gap beyond its tolerance, in standard errors: up to 1 is back, from 2 on above."""
    course: Course
    back_in: int | None
    """Steps until the gap has closed at its present pace, while it shrinks."""
    rise_steps: int
    """Steps from the onset until the gap was three quarters as wide as now."""
    return_excluded: bool
    """Whether the gap would have shrunk by now if the loss came back within 500 steps."""
    is_back_just_now: bool
    """Whether the newest two losses are where they would have been, and those before were not."""
    is_doubled: bool
    """Whether the loss is twice what was expected."""
    is_learning: bool
    """Whether the loss has been falling since its peak."""
    lost: float
    """The fraction of what had been learnt that is gone; 0 if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The reward of a policy before an onset and now."""

    before: float
    now: float
    is_gone: bool
    """Whether more than half of it is lost, by more than three standard errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The held-out loss before an onset and now."""

    before: float
    now: float
    is_above: bool
    is_back: bool
    """Whether it is where it was, within its noise; neither this nor `is_above` if that is not
    clear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate at an onset and what is left of it."""

    before: float
    now: float
    steps_left: int | None
    """Steps until it reaches 0 at its present pace; None if it does not fall."""
    has_ended: bool

    @property
    def times(self) -> float:
        """How many times the rate before the onset the present one is."""
        return self.now / self.before if self.before > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is true of an incident at one record."""

    records_before: int = 0
    """Finite losses before the onset, at most 512."""
    records: int = 0
    """Records since the onset, the first one included."""
    steps: int = 0
    """Steps from the onset to the newest record."""
    is_loud: bool = True
    """Whether the loss itself raised an alarm."""
    is_kept_out: bool = False
    """Whether every bad step so far was kept out of the weights."""
    undone_updates: int = 0
    """Updates that were undone because weights or optimizer were harmed."""
    has_undo_failed: bool = False
    """Whether the loss was seen not to return after that."""
    is_undo_watched: bool = False
    """Whether the newest undo is too recent to tell whether the loss returns."""
    has_collapsed: bool = False
    """Whether a policy was found to be lost by another signal than its reward."""
    never_learnt: bool = False
    """Whether the run was found not to learn."""
    is_measure: bool = True
    """Whether the loss measures progress; that of a policy or an adversary does not."""
    has_direction: bool | None = None
    """Whether the loss had fallen, more than it rose, before; None if that was too early to say."""
    start_loss: float | None = None
    """The loss with which the log begins; None if it is not known."""
    times_start: float = 0.0
    """The newest losses, as a multiple of that one."""
    started_again: bool = False
    """Whether the loss went back to where the run began and fell as it did then: a restart."""
    kept_out_at_end: int = 0
    """Steps in a row at the end that were kept out of the weights."""
    was_left_behind: bool = False
    """Whether the run went back to a step before the onset since, and on from there."""
    nonfinite_at_end: int = 0
    """Non-finite losses in a row at the end that were applied to the weights."""
    nonfinite_fraction: float = 0.0
    """Fraction of the newest 32 records whose loss was not finite and not kept out."""
    slowest_return: int = 0
    """Records that the slowest of the run's earlier spikes took to come back."""
    has_finite_state: bool = True
    """Whether the norms of weights and optimizer were finite when they were last recorded."""
    has_overflowed: bool = False
    """Whether no loss has come since the loss scale collapsed: the scaler skips every step."""
    is_frozen: bool = False
    """Whether the loss has stopped moving altogether."""
    factor: float | None = None
    """The factor by which loss and gradient norm were multiplied at once, both alike: what was
    learnt may still be there, and the level says nothing about it."""
    level: Level | None = None
    """None where too few finite losses came before, or since."""
    reward: Reward | None = None
    evaluation: Evaluation | None = None
    schedule: Schedule | None = None

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Facts":
        """Return the facts that `dataclasses.asdict` saved."""
        parts: dict[str, Any] = dict(state)
        kinds = {"reward": Reward, "evaluation": Evaluation, "schedule": Schedule}
        for name, kind in kinds.items():
            parts[name] = kind(**parts[name]) if parts[name] else None
        level = parts["level"]
        if level:
            parts["level"] = Level(**{**level, "course": Course(level["course"])})
        return cls(**parts)
