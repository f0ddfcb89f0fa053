"""What is asked for, decided and told about an undo, from the request to the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.live.recover.memory_watch import StateTensor, state_tensors
from trimtab.live.recover.rules import Proof, StateFindings, UndoHistory
from trimtab.live.recover.tracked_optimizer import TrackedOptimizer
from trimtab.state.snapshots import Snapshots

MAX_WAIT = 32
"""Updates that one optimizer waits for another to be restored with it. Chosen: a GAN steps one of
its two at most some ten times as often as the other."""

NO_SNAPSHOT = "there is no snapshot of these parameters from before it"
EDITED = "your code has written weights since the last snapshot, which would be lost"


class RunRequests:
    """What a person or the first rank asks for, until the next exchange takes it to all ranks."""

    def __init__(self) -> None:
        self._order = 0
        self.relaunch_reason = ""
        """Why the run is to end and be started again; empty if it is not."""

    def undo(self, updates: int) -> None:
        self._order = updates + 1

    def relaunch(self, reason: str) -> None:
        """End the run on all ranks, to be started again from a checkpoint; on the first rank."""
        self.relaunch_reason = reason

    def pop_order(self) -> int:
        """Return 1 more than the updates to undo, once; 0 if nobody asks for an undo."""
        order, self._order = self._order, 0
        return order


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """What is journalled and logged about an undo, or about harm that is not undone."""

    proof: Proof
    tensor: str | None
    updates_lost: int | None
    """None if nothing was undone."""
    updates_discarded: int = 0
    """Updates since the restored state that were not applied, so that nothing of them is lost."""
    num_nonfinite: int = 0
    """Updates in a row without a finite gradient."""
    reverts_edits: bool = False
    """Whether writes by code since the snapshot, counted by torch, are taken back, too."""
    why_not: str | None = None
    gain: float | None = None
    """By how much the loss of the restored state was lower in a trial; None without one."""


@dataclass(slots=True, kw_only=True)
class PendingUndo:
    """An undo that was decided and is not carried out everywhere yet."""

    snapshots: dict[int, int]
    """The snapshot to restore, by the index of each optimizer that is not restored yet."""
    tensor: StateTensor | None
    """The tensor that was harmed, where it is known."""
    decided_at: int
    """Number of the exchange at which it was decided."""
    report: UndoReport
    """What is said of it once it is done."""
    has_begun: bool = False
    """Whether one of the optimizers has been restored: from then on it cannot be given up."""

    def report_after(self, updates: int) -> UndoReport:
        """Return the report, so many updates after the decision."""
        report = self.report
        if report.proof in (Proof.ORDERED, Proof.TRIED) and report.updates_lost is not None:
            return replace(report, updates_lost=report.updates_lost + updates)
        # The gate has discarded them: the state was known to be harmed.
        return replace(report, updates_discarded=report.updates_discarded + updates)


class UndoPlanner:
    """Chooses the snapshots to restore, from what all ranks know alike."""

    def __init__(
        self,
        optimizers: Sequence[TrackedOptimizer],
        snapshots: Snapshots,
        history: UndoHistory,
        names: Mapping[int, str],
    ) -> None:
        """Plan for a run; `names` are those of its parameters, by id."""
        self._optimizers = optimizers
        self._snapshots = snapshots
        self._history = history
        self._names = names

    def plan(
        self, proof: Proof, findings: StateFindings, tracked: TrackedOptimizer, *, exchange: int
    ) -> PendingUndo | UndoReport:
        """Return the undo of what was found in an optimizer's state, or why there is none."""
        every = self._optimizers
        age = max(int(findings.ordered) - 1, 0)
        applied = {one.index: one.num_updates for one in every}
        latest = {one.index: one.num_updates - age for one in every}
        if proof.stands_still:
            # The state that the last finite gradients were computed with is sound; the updates
            # after that one were discarded.
            applied = {one.index: one.last_finite_update + 1 for one in every}
            latest = {one.index: one.last_finite_update for one in every}
        problem = self._history.why_not(proof, tracked.num_updates, [one.edits for one in every])
        targets = self._find_targets(latest) or {}
        pairs = [(one, targets[one.index]) for one in every if one.index in targets]
        reverts_edits = any(one.edits.would_be_lost(step) for one, step in pairs)
        if problem is None and not targets:
            problem = NO_SNAPSHOT
        # A run that stands still is lost otherwise; a person who asks for an undo knows.
        elif problem is None and reverts_edits and proof in (Proof.FLIPPED, Proof.IMPOSSIBLE):
            problem = EDITED
        tensor = _find_tensor(tracked, findings.tensor_index)
        report = UndoReport(
            proof=proof,
            tensor=None if tensor is None else tensor.name(self._names),
            updates_lost=None,
            updates_discarded=tracked.num_updates - applied[tracked.index],
            num_nonfinite=tracked.num_nonfinite,
            # What torch has not counted may be the harm itself.
            reverts_edits=any(step <= one.last_counted_edit for one, step in pairs),
            why_not=problem,
        )
        if problem is not None:
            return report
        for one in every:
            one.requested_at = one.num_updates
        lost = max(applied[index] - step for index, step in targets.items())
        return PendingUndo(
            snapshots=targets,
            tensor=tensor,
            decided_at=exchange,
            report=replace(report, updates_lost=lost),
        )

    def _find_targets(self, latest: Mapping[int, int]) -> dict[int, int] | None:
        """Return the newest clean snapshot of each optimizer in use, up to an update of each."""
        found = {}
        total = sum(one.num_updates for one in self._optimizers)
        for one in self._optimizers:
            if total - one.last_step_total > MAX_WAIT * len(self._optimizers):
                continue  # its training is over
            target = self._snapshots.newest(one.index, latest[one.index])
            if target is None:
                return None
            found[one.index] = target
        return found


def _find_tensor(tracked: TrackedOptimizer, index: int | None) -> StateTensor | None:
    parts = state_tensors(tracked.optimizer)
    return None if index is None or not 0 <= index < len(parts) else parts[index]
