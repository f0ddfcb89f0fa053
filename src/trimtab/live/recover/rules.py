"""What proves that a run's state was harmed, and what follows: pure functions of reduced numbers.

Only the state itself is proof. The loss is none: in purposeful phases (another data mix, a new loss
term, a head that is reset) it jumps as far as in faults, and it is the user's to change.

    flipped      one bit of a tensor changed between two updates, and no code wrote it
    nonfinite    a weight or a moment is not finite
    impossible   a moment is beyond what Adam can make of any gradients
    stuck        no gradient is finite any more, although every update has been discarded since
    ordered      a person asked for it

`stuck` is no proof of where the harm is. A weight that a flipped bit made 1e36 is finite itself,
but everything computed with it overflows, so the run cannot go on without an undo. If the data was
to blame instead, the undo costs the few updates since the last snapshot, once.

All ranks decide from the same sums at the same exchange, so they decide alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimtab.live.protect.gate_reporter import HARM

FIELDS = (
    *("flipped", "written", "flipped_place"),
    *("nonfinite", "impossible", "broken_place"),
    *("audited", "edited", "ordered", "relaunch", "unable", HARM),
)
"""What each rank adds to the exchange of an update. `audited` and `edited` count ranks. `ordered`
is the first rank's: 1 more than the updates to lose at least; `relaunch` is 1 where it ends the
run. Places count from 1; 0 is none. The last one counts ranks whose state waits for an undo."""

RETURN_STEPS = 100
"""Updates within which the same trouble is no accident any more. Chosen: an undo loses up to 30
updates, and a cause that stays shows again soon after them."""

STUCK_STEPS = 50
"""Updates in a row without a finite gradient, after which the state is assumed to be harmed.
Source: a GradScaler that starts at 2^16 needs at most 40 to find its scale."""

MAX_UNDOS, PER_UPDATES = 3, 1000
"""Undos within so many updates. Chosen: a machine whose memory flips bits more often should be
replaced, and three lines in the log say so."""

HABIT = 100
"""Updates between two edits of the weights by code, below which code makes them as a habit, such as
a projection after each update: it repeats those that an undo takes back. Chosen."""


class Proof(StrEnum):
    """Why a state is not what training made of it."""

    FLIPPED = "one bit flipped in memory"
    NONFINITE = "not finite"
    IMPOSSIBLE = "moments that no gradients can lead to"
    STUCK = "no finite gradient any more"
    ORDERED = "asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the ranks have found in one exchange, summed over them."""

    flipped: float = 0
    written: float = 0
    flipped_place: float = 0
    nonfinite: float = 0
    impossible: float = 0
    broken_place: float = 0
    audited: float = 0
    edited: float = 0
    ordered: float = 0
    relaunch: float = 0
    unable: float = 0
    harm: float = 0

    @property
    def is_sound(self) -> bool:
        """Whether an audit was made and has found nothing."""
        return self.audited > 0 and not self.nonfinite and not self.impossible

    @property
    def proof(self) -> Proof | None:
        """What is proven, the surest first."""
        if self.nonfinite:
            return Proof.NONFINITE
        if self.flipped:
            return Proof.FLIPPED
        if self.impossible:
            return Proof.IMPOSSIBLE
        return Proof.ORDERED if self.ordered else None

    @property
    def place(self) -> int | None:
        """The place of the tensor, from 0; None if there is none or more than one."""
        if self.nonfinite + self.impossible == 1:
            return int(self.broken_place) - 1
        return int(self.flipped_place) - 1 if self.flipped == 1 else None


@dataclass(frozen=True, slots=True)
class Edits:
    """When code has last written the weights of an optimizer, outside of its updates."""

    last: int = -1
    """The number of updates that had been made before the last edit; -1 without one."""
    is_habit: bool = False
    """Whether there was another one shortly before it."""

    def add(self, update: int) -> "Edits":
        """Return the edits with one more."""
        return Edits(update, self.last >= 0 and update - self.last < HABIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """One undo of the past."""

    proof: Proof
    update: int
    """The number of the update that was not made."""


def why_not(proof: Proof, update: int, past: Sequence[Undone]) -> str | None:
    """Return why an undo would not help; None if it may.

    Trouble that returns at once is no accident: fighting it would lose updates for ever.
    """
    if proof is Proof.ORDERED:
        return None
    same = [undone for undone in past if undone.proof is proof]
    if proof is not Proof.FLIPPED and same and update - same[-1].update <= RETURN_STEPS:
        return f"it is back {update - same[-1].update} updates after an undo, so it has a cause"
    recent = [undone for undone in past if update - undone.update < PER_UPDATES]
    if len(recent) >= MAX_UNDOS:
        return f"{len(recent)} undos in the last {PER_UPDATES} updates did not end it"
    return None
