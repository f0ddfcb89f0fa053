"""TrackedOptimizer: everything that an undo must know about one optimizer and its updates."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.live.recover.audit import StateAudit, Travel
from trimtab.live.recover.memory_watch import MemoryWatch, StateTensor, state_tensors
from trimtab.live.recover.rules import Edits
from trimtab.state.host_copy import WriteCount, detached, write_count

RETURN_FACTOR = 100.0
"""Factor by which code must have enlarged the largest element of a tensor that was just restored,
to have brought the harm back. Chosen: far above what an average of old and new weights does, far
below a flipped exponent bit that needed an undo."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What torch has counted of each tensor of an optimizer."""

    weights: list[WriteCount]
    state: list[WriteCount]

    @classmethod
    def from_tensors(cls, parts: Sequence[StateTensor]) -> "Fingerprint":
        """Count the writes of each tensor, without reading any."""
        return cls(
            [write_count(part.tensor) for part in parts if part.key is None],
            [write_count(part.tensor) for part in parts if part.key is not None],
        )


@dataclass(frozen=True, slots=True)
class RestoredTensor:
    """The tensor whose harm was undone last."""

    tensor: torch.Tensor
    largest: torch.Tensor
    """Its largest absolute value right after the restore, on the device."""

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> "RestoredTensor":
        return cls(tensor, _largest(tensor))

    @property
    def is_harmed_again(self) -> torch.Tensor:
        """Whether it is far from what was restored, on the device."""
        return ~(_largest(self.tensor) <= RETURN_FACTOR * self.largest)


class TrackedOptimizer:
    """One optimizer, with everything that an undo must know about its updates."""

    def __init__(
        self, optimizer: Optimizer, index: int, device: torch.device, model: nn.Module
    ) -> None:
        self.optimizer = optimizer
        self.index = index
        """Index among the watched optimizers; snapshots are stored under it."""
        self.memory_watch = MemoryWatch(device)
        self.audit = StateAudit(optimizer, device, model if index == 0 else None)
        self.num_updates = 0
        self.last_step_total = 0
        """Updates that all optimizers had made together when this one was stepped last."""
        self.pending_audit: tuple[int, torch.Tensor] | None = None
        """The snapshot that was audited last and the findings, until they are sent."""
        self.last_finite_update = -1
        """Updates made before the last one with finite gradients; -1 without one."""
        self.num_nonfinite = 0
        """Consecutive updates with non-finite gradients, agreed by all ranks."""
        self.is_examined = False
        """Whether the state is audited for the next exchange, agreed by all ranks."""
        self.is_sent_examined = False
        """Whether it was audited for the present one, which is read at once."""
        self.last_restored_update = -1
        """The last update that was not made because the state was restored."""
        self.restored_tensor: RestoredTensor | None = None
        self.requested_at = 0
        """Updates made when the undo that is under way was decided."""
        self.fingerprint: Fingerprint | None = None
        """Version and address of each tensor after the last update."""
        self.edits = Edits()
        """When code has written weights or state, agreed by all ranks."""
        self.last_edit_here = -1
        """Updates made before the last edit that this rank has seen; the others hear of it."""
        self.last_counted_edit = -1
        """Updates made before the last edit that torch has counted on any rank."""
        self.extra_snapshot_at = -1
        """Number of updates after which an unscheduled snapshot is taken."""
        self.travel = Travel()
        """How far the updates so far can have moved a weight."""
        self.travel_at: dict[int, Travel] = {}
        """The same at the last snapshots."""

    def count_update(self, total: int) -> None:
        """An update was made; `total` is that of all optimizers."""
        self.num_updates += 1
        self.last_step_total = total

    def count_travel(self) -> None:
        """Add how far the last update can have moved a weight."""
        self.travel = self.travel.add(self.optimizer)

    def audit_snapshot(self, parts: Sequence[StateTensor]) -> None:
        """Audit the state of which a snapshot is due; the findings go with the next exchange."""
        self.pending_audit = (self.num_updates, self.audit.audit(parts))

    def pop_audit(self) -> tuple[int, torch.Tensor] | None:
        """Return the snapshot that was audited and the findings, once."""
        audit, self.pending_audit = self.pending_audit, None
        return audit

    def examine(self, *, is_needed: bool) -> None:
        """Audit the state for the next exchange, which is read at once."""
        self.is_examined = is_needed

    def send_examination(self) -> None:
        """What was audited goes with the present exchange."""
        self.is_sent_examined, self.is_examined = self.is_examined, False

    def pop_examination(self) -> bool:
        """Return whether the exchange that was just made has an audit to be read, once."""
        is_sent, self.is_sent_examined = self.is_sent_examined, False
        return is_sent

    def take_fingerprint(self, parts: Sequence[StateTensor]) -> None:
        self.fingerprint = Fingerprint.from_tensors(parts)

    def request_undo(self) -> None:
        self.requested_at = self.num_updates

    def is_snapshot_due(self, every: int) -> bool:
        is_scheduled = self.num_updates == 1 or self.num_updates % every == 0
        return is_scheduled or self.num_updates == self.extra_snapshot_at

    def count_nonfinite(self, update: int, *, is_finite: bool) -> None:
        self.num_nonfinite = 0 if is_finite else self.num_nonfinite + 1
        if is_finite:
            self.last_finite_update = update

    def note_edit(self, update: int, *, is_counted: bool) -> None:
        """Remember that code wrote weights or state, and copy them unless it does so often."""
        self.edits = self.edits.add(update)
        if is_counted:
            self.last_counted_edit = update
        if not self.edits.is_frequent:
            self.extra_snapshot_at = self.num_updates + 1

    def find_edit(self) -> bool:
        """Return whether code has written weights or state since the last update.

        Moments that code has written may be impossible: that is no proof of anything.
        """
        if self.fingerprint is None:
            return False
        now = Fingerprint.from_tensors(state_tensors(self.optimizer))
        if now == self.fingerprint:
            return False
        if now.state != self.fingerprint.state:
            self.audit.accept_written_state()
        self.last_edit_here = self.num_updates
        return True

    def mark_snapshot(self) -> None:
        """Remember how far updates could have moved the weights until this snapshot."""
        self.travel_at[self.num_updates] = self.travel
        for step in sorted(self.travel_at)[:-8]:
            del self.travel_at[step]

    def mark_restored(self, harmed: StateTensor | None) -> None:
        """Forget everything that was measured on the state that no longer exists; `harmed` is the
        weight that was, if it is known and is one."""
        self.restored_tensor = None if harmed is None else RestoredTensor.from_tensor(harmed.tensor)
        self.last_restored_update = self.num_updates
        self.num_nonfinite = 0
        self.is_examined = False
        self.pending_audit = None
        self.memory_watch.forget()

    def forget_restored(self) -> None:
        """The harm has come back into the weight that was restored."""
        self.restored_tensor = None


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    largest: torch.Tensor = detached(tensor).abs().amax()
    return largest
