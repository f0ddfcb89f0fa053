"""SnapshotRing: which snapshots are kept, and which one a rollback returns to.

Ages grow geometrically: a sharp fault is found within a few steps and needs a young snapshot, a
slow one is found late and needs an old one.
"""

from trimtab.state.host_copy import ReplicaGroup
from trimtab.state.snapshot import Snapshot
from trimtab.state.training_state import TrainingState

MIN_SLOTS = 2
"""The least that makes sense: one younger than a slow onset, one older than a sharp one."""


class SnapshotRing:
    """A fixed number of snapshots at ages from about `every` to about `oldest` steps."""

    def __init__(self, slots: list[Snapshot], *, every: int, oldest: int) -> None:
        self._free = list(slots)
        self._kept: list[Snapshot] = []
        """Oldest first."""
        self.every = every
        self.oldest = oldest
        self._hold_before: int | None = None

    @property
    def kept(self) -> tuple[Snapshot, ...]:
        """The snapshots, oldest first."""
        return tuple(self._kept)

    def add(self, slots: list[Snapshot]) -> None:
        """Add slots, once it is known how many fit."""
        self._free += slots

    def share(self, replicas: ReplicaGroup | None) -> None:
        """From now on each rank keeps its part of a snapshot."""
        for slot in (*self._free, *self._kept):
            slot.replicas = replicas

    def clear(self) -> None:
        """Give up all snapshots; their slots can be used again."""
        self._free += self._kept
        self._kept.clear()

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is to be taken before this step."""
        return not self._kept or step - self._kept[-1].step >= self.every

    def hold_before(self, onset: int | None) -> None:
        """While an incident is open, keep the newest snapshot that is older than its onset."""
        self._hold_before = onset

    def take(self, state: TrainingState, step: int) -> Snapshot:
        """Take a snapshot into a free slot, or into the one that is missed least."""
        slot = self._free.pop() if self._free else self._give_up(step)
        try:
            slot.take(state, step)
        except BaseException:
            self._free.append(slot)
            raise
        self._kept.append(slot)
        return slot

    def newest_before(self, step: int) -> Snapshot | None:
        """The newest snapshot from which `step` has not been done yet."""
        older = [slot for slot in self._kept if slot.step <= step]
        return older[-1] if older else None

    def drop_after(self, slot: Snapshot) -> None:
        """Give up the snapshots of the attempt that a rollback to `slot` has ended."""
        place = self._kept.index(slot) + 1
        self._free += self._kept[place:]
        del self._kept[place:]

    def _give_up(self, step: int) -> Snapshot:
        """The slot without which the remaining ages are closest to a geometric series."""
        needed = None if self._hold_before is None else self.newest_before(self._hold_before)
        ages = [max(step - slot.step, 1) for slot in self._kept]
        # The tape reaches back to the oldest, and there is memory for twice that age.
        is_too_old = len(ages) > 1 and (ages[1] >= self.oldest or ages[0] >= 2 * self.oldest)
        if is_too_old and self._kept[0] is not needed:
            return self._kept.pop(0)
        # Without slot i its neighbours are next to each other: the smaller the ratio of their ages,
        # the less is lost. The oldest stays until the next one is old enough, and so does the
        # newest: what is found a few steps after its onset began before the one taken now.
        ratios = {
            place: ages[place - 1] / ages[place + 1]
            for place in range(1, len(ages) - 1)
            if self._kept[place] is not needed
        }
        if ratios:
            return self._kept.pop(min(ratios, key=lambda at: ratios[at]))
        # Two or three slots, and an incident needs one of them.
        return self._kept.pop(0 if self._kept[0] is not needed else -1)
