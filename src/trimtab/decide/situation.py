"""Situation: everything that a decision depends on, as one value."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trimtab.core.findings import Symptom
from trimtab.core.signals import PARAM_NORM
from trimtab.decide.symptoms import DATED, STATE_FAMILIES, Family, family_of, margin_of
from trimtab.journal.exit_request import RunExit

STUCK = 16
"""Of the last 20 steps: so few reach the weights that the run does not train."""

RESUME_STEPS = 20
"""Trouble with the optimizer's state this soon after a resume is the resume's. Source: a lost
state shows within 4 steps and a wrong position within 8 in the lab."""


class Act(StrEnum):
    """What a run can do, mildest first: at equal cost the mildest is taken."""

    WAIT = "wait"
    PROBE = "probe"
    HOLD = "hold"
    RESTORE = "restore"
    """Return to a snapshot and train on the same batches again."""
    RESTORE_AND_SKIP = "restore and skip"
    QUARANTINE = "quarantine"
    """Restore, and leave out a data source from then on."""
    LOWER_LR = "lower LR"
    """Restore, and continue with a lower learning rate for some time."""
    RELAUNCH = "relaunch"
    """Stop with exit code 75: a relaunch, elsewhere or from the checkpoint, can help."""
    STOP = "stop"
    """Stop with exit code 76: a relaunch cannot help."""


ROLLBACKS = frozenset({Act.RESTORE, Act.RESTORE_AND_SKIP, Act.QUARANTINE, Act.LOWER_LR})
SKIPPING = frozenset({Act.RESTORE_AND_SKIP, Act.QUARANTINE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """A setting that is not what it was in the snapshot."""

    name: str
    """Such as "group 0 weight_decay" or "requires_grad of blocks.0.attention.weight"."""
    before: Any
    after: Any
    is_announced: bool = False
    """Whether a `planned change` event came between the two."""
    step: int | None = None
    """The step of the snapshot that has the value before."""

    @property
    def option(self) -> str:
        """The option of an optimizer that it is about, or "requires_grad"."""
        is_flag = self.name.startswith("requires_grad")
        return "requires_grad" if is_flag else self.name.rpartition(" ")[2]

    @property
    def ratio(self) -> float:
        """How far apart the two are, at least 1; inf where that cannot be said."""
        pairs = list(zip(_numbers(self.before), _numbers(self.after), strict=False))
        if not pairs:
            return math.inf
        # A beta of 0.95 averages over 20 steps, one of 0.9999 over 10,000.
        if "beta" in self.name or "momentum" in self.name:
            pairs = [(1 - before, 1 - after) for before, after in pairs]
        return max(_ratio(before, after) for before, after in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known at a boundary, before the step `step`."""

    incident: int = 0
    """Number of the incident; 0 if a probe found it and no detector did."""
    step: int
    onset: int
    """Where it seems to have begun."""
    waited: int
    """Steps since the alarm."""
    symptoms: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    """The signals that show them."""
    is_dated: bool = False
    """Whether the onset is that of a jump, known to the step, whatever its symptom."""
    certainty: float = 1.0
    """How likely it is that something is wrong at all."""
    batch_was_odd: bool = False
    """Whether the loss of the batch at the onset was far above usual, so that the batch explains
    what followed."""
    bad_in_a_row: int = 0
    """Steps in a row, up to now, that were discarded or not finite."""
    bad_recently: int = 0
    """Of the last 20 steps, how many did not reach the weights."""
    probe: float | None = None
    """Latest reading since the onset: mean loss of known-good batches now, minus when they were
    trained on. None if there is none yet; NaN is a reading."""
    probe_waited: int = -1
    """Steps since the alarm at which the reading was taken."""
    probe_steps: int = 8
    """Steps whose batches the reading is the mean of."""
    rise: float | None = None
    """Nats by which known-good batches are worse than at the last good reading of the canary."""
    text_changed: bool = False
    """Whether a detector has found that the tokens are unlike those before."""
    healthy: tuple[float, ...] = ()
    """Readings of one step each from before the onset."""
    can_probe: bool = False
    loss_excess: float | None = None
    """Recent mean loss minus the usual one, where no probe can be made."""
    loss_noise: float | None = None
    """Usual deviation of that mean."""
    differences: tuple[SettingDifference, ...] = ()
    recurrences: int = 0
    """How often this family of symptoms has come back after a remedy here."""
    tried: tuple[Act, ...] = ()
    """The remedies so far, for this family at this place."""
    last_depth: int = 0
    """Steps from the onset back to the snapshot of the last remedy."""
    slots: tuple[int, ...] = ()
    """Steps at which a snapshot can be returned to, in rising order."""
    slope: float | None = None
    """How much the loss falls per step; None if it is not known."""
    resumed_at: int | None = None
    """The first step after the last resume."""
    source: str | None = None
    """The data source of the batches since the onset, where batches name theirs."""
    suspect_rank: int | None = None
    """The rank that computes differently from the others, where one does."""
    rollbacks: int = 0
    """Rollbacks within the budget's window of steps."""
    skipped: int = 0
    """Batches skipped within the budget's window of steps."""
    lr_reductions: int = 0
    relaunches_left: int = 0
    """How often a supervisor would still start the run again."""
    positions: tuple[int, int] | None = None
    """First and last data position since the onset; no decision depends on them."""
    note: str = ""
    """What else a person should know who gets the reason; no decision depends on it."""

    @property
    def family(self) -> Family:
        """The family of symptoms that decides."""
        family = family_of(self.symptoms)
        if family in STATE_FAMILIES | {Family.LOSS, Family.RESUME} and self.follows_resume:
            return Family.RESUME
        return family

    @property
    def follows_resume(self) -> bool:
        """Whether it began so soon after a resume that the resume is to blame."""
        at = self.resumed_at
        return at is not None and at <= self.onset < at + RESUME_STEPS

    @property
    def is_stuck(self) -> bool:
        """Whether hardly any step reaches the weights."""
        return self.bad_recently >= STUCK

    @property
    def has_broken_weights(self) -> bool:
        """Whether a weight is not finite: a fact, and no batch does that while the gate is on."""
        return Symptom.NONFINITE_NORM in self.symptoms and PARAM_NORM in self.signals

    @property
    def margin(self) -> int:
        """Steps before the onset at which the run was surely healthy."""
        return DATED if self.is_dated else margin_of(self.symptoms)

    @property
    def depth(self) -> int:
        """Steps before the onset to return to; each recurrence doubles them."""
        if not self.recurrences:
            return self.margin
        return max(self.margin << self.recurrences, 2 * self.last_depth)

    @property
    def target(self) -> int | None:
        """The snapshot to return to; None if there is none deep enough."""
        older = [slot for slot in self.slots if slot <= self.onset - self.depth]
        return max(older, default=None)

    @property
    def unplanned(self) -> tuple[SettingDifference, ...]:
        """The differences that no event announced."""
        return tuple(part for part in self.differences if not part.is_announced)


def _numbers(value: Any) -> list[float]:
    values = value if isinstance(value, list | tuple) else [value]
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


def _ratio(before: float, after: float) -> float:
    small, large = sorted((abs(before), abs(after)))
    if large == 0 or small == large:
        return 1.0
    return large / small if small > 0 else math.inf


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
