"""What proves that a run's state was harmed, and what follows: pure functions of reduced numbers.

Only the state itself is proof. The loss is none: in purposeful phases (another data mix, a new loss
term, a head that is reset) it jumps as far as in faults, and it is the user's to change. What code
has written is the user's too.

    flipped      exactly one bit of one element changed between two updates, and no code wrote it
    nonfinite    a weight or a moment is not finite, and neither is what is computed with it
    too far      a weight is further from its snapshot than Adam can have moved it, and nothing that
                 is computed with it is finite
    impossible   a moment is beyond what Adam can make of any gradients, and no code wrote it
    stuck        no gradient is finite any more, although every update has been discarded since
    ordered      a person asked for it
    tried        an older state has won a trial (`trial_rule`); no proof, but a measurement

`stuck` is no proof of where the harm is, but the run cannot go on without an undo. If the data was
to blame instead, the undo costs the few updates since the last snapshot, once.

All ranks decide from the same sums at the same exchange, so they decide alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum

from trimtab.live.measure.step_meter import STEP_SUMS
from trimtab.live.ranks.exchange import RankSync

MEMORY_FIELDS = ("flipped", "flipped_ranks", "written", "flipped_tensor")
"""Findings of `MemoryWatch`: tensors with a flipped bit, ranks that have one, weights that code has
written past torch's counters, index of the tensor."""

AUDIT_FIELDS = (
    *("nonfinite", "impossible", "too_far", "broken_tensor"),
    *("nonfinite_buffers", "broken_buffer"),
)
"""Findings of `StateAudit`: counts of tensors, and the index of one; the same of buffers."""

TRIAL_FIELDS = ("trial_scored", "trial_gap", "trial_old")
"""Findings of `StateTrial` about the batch before: ranks that scored it, gaps and old losses."""

RETURN_STEPS = 100
"""Updates within which the same trouble is no accident any more, and within which a refusal stands.
Chosen: an undo loses up to 30 updates, and a cause that stays shows again soon after them."""

STUCK_STEPS = 6
"""Updates in a row without a finite gradient, after which the state is assumed to be harmed.
Source: one more than the longest run of bad batches in the lab."""

STUCK_STEPS_WITH_SCALER = 50
"""The same limit with a GradScaler. Source: one that starts at 2^16 needs at most 40 updates to
find its scale."""

MAX_UNDOS, PER_UPDATES = 3, 1000
"""Undos within so many updates. Chosen: a machine whose memory flips bits more often should be
replaced, and three lines in the log say so."""

FREQUENT_EDIT_UPDATES = 100
"""Updates between two edits of the state by code, below which code makes them all the time, such as
a projection after each update: it repeats those that an undo takes back. Chosen."""


class Proof(StrEnum):
    """Why a state is not what training made of it."""

    FLIPPED = "one bit flipped in memory"
    NONFINITE = "not finite"
    TOO_FAR = "further than updates can move it"
    IMPOSSIBLE = "moments that no gradients can lead to"
    STUCK = "no finite gradient any more"
    ORDERED = "asked for"
    TRIED = "an older state is better"

    @property
    def stands_still(self) -> bool:
        """Whether training does not go on: an undo then takes back edits by code, too."""
        return self in (Proof.NONFINITE, Proof.TOO_FAR, Proof.STUCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFindings:
    """Findings of all ranks in one exchange, summed over them.

    `audited`, `edited`, `cramped` (without memory for all snapshots) and `unable` count ranks, and
    so do `trial_ready` (can score the batch at hand), `trial_changed` (has seen settings change)
    and `trial_failed` (tries no state). Only the first rank fills three: `snapshot` is 1 where it
    is time for one, `ordered` 1 more than the updates to lose at least, `relaunch` 1 where it ends
    the run. Indices count from 1; 0 is none. The last one counts ranks whose state waits for an
    undo.
    """

    flipped: float = 0
    flipped_ranks: float = 0
    written: float = 0
    flipped_tensor: float = 0
    nonfinite: float = 0
    impossible: float = 0
    too_far: float = 0
    broken_tensor: float = 0
    nonfinite_buffers: float = 0
    broken_buffer: float = 0
    returned: float = 0
    audited: float = 0
    edited: float = 0
    cramped: float = 0
    snapshot: float = 0
    ordered: float = 0
    relaunch: float = 0
    unable: float = 0
    trial_ready: float = 0
    trial_changed: float = 0
    trial_failed: float = 0
    trial_scored: float = 0
    trial_gap: float = 0
    trial_old: float = 0
    harm: float = 0

    @property
    def is_sound(self) -> bool:
        """Whether the state that was audited may be restored later."""
        return not (self.nonfinite or self.impossible or self.nonfinite_buffers)

    def proof(self, *, is_finite: bool, world: int) -> Proof | None:
        """Return what is proven, the surest first.

        Replicas do not all flip the same bit in one update: code has written it on all of them.
        """
        if self.nonfinite and not is_finite:
            return Proof.NONFINITE
        if self.flipped and (world == 1 or self.flipped_ranks < world):
            return Proof.FLIPPED
        if self.too_far and not is_finite:
            return Proof.TOO_FAR
        if self.impossible:
            return Proof.IMPOSSIBLE
        return Proof.ORDERED if self.ordered else None

    @property
    def tensor_index(self) -> int | None:
        """The index of the harmed tensor, from 0; None if there is none or more than one."""
        if self.nonfinite + self.impossible + self.too_far == 1:
            return int(self.broken_tensor) - 1
        return int(self.flipped_tensor) - 1 if self.flipped == 1 else None


FIELDS = tuple(one.name for one in fields(StateFindings))
"""What each rank adds to the exchange of an update: `MEMORY_FIELDS`, `AUDIT_FIELDS`, what else it
knows, `TRIAL_FIELDS`, and its harm."""


def read_exchange(ranks: RankSync) -> tuple[float, StateFindings, dict[str, float]]:
    """Read the exchange that was just made: ranks that leave, findings, step sums.

    Waits for the device, which only a run that stands still may do, or a trial of states.
    """
    queue = iter(ranks.last_total())
    num_leaving = next(queue)
    sums = {name: next(queue) for name in STEP_SUMS}
    findings = StateFindings(**{name: next(queue) for name in FIELDS})
    return num_leaving, findings, sums


@dataclass(frozen=True, slots=True)
class Edits:
    """When code has last written the state of an optimizer, outside of its updates."""

    last: int = -1
    """The number of updates that had been made before the last edit; -1 without one."""
    is_frequent: bool = False
    """Whether there was another one shortly before it."""
    first: int = -1
    """The first of those that followed each other shortly, up to the last."""

    def add(self, update: int) -> "Edits":
        is_frequent = self.last >= 0 and update - self.last < FREQUENT_EDIT_UPDATES
        return Edits(update, is_frequent, self.first if is_frequent else update)

    def would_be_lost(self, snapshot: int) -> bool:
        """Return whether a snapshot lacks an edit that code does not repeat by itself."""
        return snapshot <= self.last and not self.is_frequent


@dataclass(frozen=True, slots=True, kw_only=True)
class PastUndo:
    """One undo of the past."""

    proof: Proof
    update: int
    """The number of the update that was not made."""


@dataclass(slots=True)
class UndoHistory:
    """Undos and refusals so far: trouble that returns at once is no accident."""

    undos: list[PastUndo] = field(default_factory=list)
    refusals: dict[Proof, int] = field(default_factory=dict)
    """The update at which each proof was refused last."""

    def why_not(self, proof: Proof, update: int, edits: Sequence[Edits] = ()) -> str | None:
        """Return why an undo would not help; None if it may."""
        if proof is Proof.ORDERED:
            return None
        last = next((undo for undo in reversed(self.undos) if _is_alike(undo.proof, proof)), None)
        if last is not None and update - last.update <= RETURN_STEPS:
            if any(edit.last > last.update for edit in edits):
                return f"it is back {update - last.update} updates after an undo: {SECOND_COPY}"
            return f"it is back {update - last.update} updates after an undo, so it has a cause"
        recent = [undo for undo in self.undos if update - undo.update < PER_UPDATES]
        if len(recent) >= MAX_UNDOS:
            return f"{len(recent)} undos in the last {PER_UPDATES} updates did not end it"
        return None

    def is_refused(self, proof: Proof, update: int) -> bool:
        """Return whether a refusal still stands: harm that lasts is found again and again.

        A flipped bit is found once, so each is decided and told by itself.
        """
        at = self.refusals.get(proof)
        return at is not None and 0 <= update - at <= RETURN_STEPS and proof is not Proof.FLIPPED


SECOND_COPY = "another copy of the weights brings it back: pass it as state={...}"
"""What to do where code writes harm into the weights again that it has copied out of them."""


def _is_alike(one: Proof, other: Proof) -> bool:
    """Return whether the second kind of harm may be the first one again; flipped bits never are."""
    if {Proof.FLIPPED, Proof.ORDERED, Proof.TRIED} & {one, other}:
        return False
    return one is other or (one.stands_still and other.stands_still)
