"""TrackedOptimizer: everything that an undo must know about one optimizer and its updates."""

import math
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from trimtab.live.measure.time_budget import Stopwatch, TimeBudget
from trimtab.live.recover.audit import StateAudit, Travel
from trimtab.live.recover.memory_watch import Fingerprint, MemoryWatch, StateList, StateTensor
from trimtab.live.recover.rules import Edits
from trimtab.state.host_copy import detached
from trimtab.state.snapshots import NUM_SLOTS

RETURN_FACTOR = 100.0
"""Factor by which code must have enlarged the largest element of a tensor that was just restored,
to have brought the harm back. Chosen: far above what an average of old and new weights does, far
below a flipped exponent bit that needed an undo."""

SNAPSHOT_SHARE = 0.002
"""Share of the time of training for audits and snapshots, by `recover.snapshot_every = 0`."""

UNMEASURED_INTERVAL, LONGEST_INTERVAL = 10, 100
"""Updates between two snapshots before their time is known, and at most. Chosen: an undo must not
lose more than 100 updates, whatever a snapshot costs."""


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


class SnapshotSchedule:
    """When the state of an optimizer is audited and copied; all ranks do so at the same update.

    A fixed number of updates apart, or as a share of the time of training allows: then the first
    rank asks, and all ranks hear of it in the same exchange.
    """

    def __init__(
        self,
        every: int,
        lag: int,
        budget: TimeBudget,
        device: torch.device,
        limits: tuple[int, int] = (0, LONGEST_INTERVAL),
    ) -> None:
        """`every` is 0 for a schedule by time, within `limits`; what was found is known `lag`
        updates later."""
        self._every = every
        self._lag = lag
        self._least = max(math.ceil((lag + 1) / (NUM_SLOTS - 1)), limits[0])
        """Updates from one snapshot to the next at least: one must be older than all news."""
        self._longest = limits[1]
        self._budget = budget
        self._stopwatch = Stopwatch(device)
        self._interval = float(UNMEASURED_INTERVAL)
        """Updates from one request to the next, in a schedule by time."""
        self._last_request = 0
        self._extra = -1
        """The number of updates after which an unscheduled snapshot is taken."""

    def is_due(self, num_updates: int) -> bool:
        """Return whether a snapshot is taken after so many updates."""
        if num_updates == 1 or num_updates == self._extra:
            return True
        return self._every > 0 and num_updates % self._every == 0

    def add(self, num_updates: int) -> None:
        """Take one after so many updates; on all ranks."""
        self._extra = num_updates

    def spare_memory(self) -> None:
        """Keep to what two snapshots allow: a rank has no memory for more."""
        self._least = self._lag + 1

    def pop_request(self, num_updates: int) -> bool:
        """Return whether it is time to ask for one; on the first rank."""
        if self._every > 0 or num_updates < self._last_request + self._interval:
            return False
        self._last_request = num_updates
        return True

    def start(self) -> None:
        self._stopwatch.start()
        seconds = self._stopwatch.seconds  # of the one before
        steps = math.nan if math.isnan(seconds) else self._budget.steps_between(seconds)
        if not math.isnan(steps):
            self._interval = min(max(steps, self._least), self._longest)

    def stop(self) -> None:
        self._stopwatch.stop()


class TrackedOptimizer:
    """One optimizer, with everything that an undo must know about its updates."""

    def __init__(
        self,
        optimizer: Optimizer,
        index: int,
        memory_watch: MemoryWatch,
        audit: StateAudit,
        schedule: SnapshotSchedule,
    ) -> None:
        self.optimizer = optimizer
        self.index = index
        """Index among the watched optimizers; snapshots are stored under it."""
        self.memory_watch = memory_watch
        self.audit = audit
        self.schedule = schedule
        self.state = StateList(optimizer)
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
        self.travel = Travel()
        """How far the updates so far can have moved a weight."""
        self.travel_at: dict[int, Travel] = {}
        """The same at the last snapshots."""

    def audit_snapshot(self) -> None:
        """Audit the state of which a snapshot is due; the findings go with the next exchange."""
        self.pending_audit = (self.num_updates, self.audit.audit(self.state.parts))

    def pop_audit(self) -> tuple[int | None, torch.Tensor | None]:
        """Return the snapshot that was audited and the findings, once."""
        audit, self.pending_audit = self.pending_audit, None
        return audit or (None, None)

    def pop_examination(self) -> bool:
        """Return whether the exchange that was just made has an audit to be read, once."""
        is_sent, self.is_sent_examined = self.is_sent_examined, False
        return is_sent

    def take_fingerprint(self) -> None:
        """Note the state as the update has left it, and sum its bits."""
        self.fingerprint = now = self.state.fingerprint()
        self.memory_watch.after_update(now)

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
            self.schedule.add(self.num_updates + 1)

    def find_edit(self, now: Fingerprint) -> bool:
        """Return whether code has written weights or state since the last update.

        Moments that code has written may be impossible: that is no proof of anything.
        """
        before = self.fingerprint
        if before is None or now.written == before.written:
            return False
        if now.of_state != before.of_state:
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


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    largest: torch.Tensor = detached(tensor).abs().amax()
    return largest
