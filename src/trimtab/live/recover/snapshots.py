"""Snapshots: the snapshots of a run and what belongs to each; the same ones on every rank."""

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.config import RecoverConfig
from trimtab.core.errors import RestoreError
from trimtab.live.loop.step_loop import StepLoop
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.ranks.replicas import checksum
from trimtab.live.recover.boundary import BoundaryMark
from trimtab.live.recover.memory import Plan, free_memory, plan_slots, ranks_here, slot_bytes
from trimtab.live.recover.rank_orders import RankOrders
from trimtab.live.shield import log
from trimtab.state.host_copy import ReplicaGroup
from trimtab.state.ring import MIN_SLOTS, SnapshotRing
from trimtab.state.snapshot import Snapshot
from trimtab.state.tape import BatchTape
from trimtab.state.training_state import TrainingState

_SUM_BITS = 38
"""Of a checksum that ranks compare: two digits on the way to the host, and a sign."""


class Snapshots:
    """Takes snapshots when they are due, and forgets what belongs to those that are gone."""

    def __init__(
        self,
        state: TrainingState,
        tape: BatchTape,
        monitor: StepMonitor,
        orders: RankOrders,
        config: RecoverConfig,
    ) -> None:
        self._state = state
        self._tape = tape
        self._monitor = monitor
        self._orders = orders
        self._config = config
        self.ring = SnapshotRing(
            [Snapshot()], every=config.snapshot_every, oldest=config.oldest_steps
        )
        self.marks: dict[int, BoundaryMark] = {}
        """What belongs to each snapshot, by its step."""
        self.is_arranged = False
        """Whether it is known, and agreed between ranks, how many snapshots there are."""
        self.has_given_up = False
        """Whether there are none any more."""
        self._has_planned = self._has_reported_gradients = False

    @property
    def _world(self) -> int:
        return self._monitor.sync.ranks.world

    @property
    def _has_updates(self) -> bool:
        return self._monitor.slow.num_updates > 0

    def take_if_due(self, loop: StepLoop) -> None:
        """At a boundary: take a snapshot if it is time for one."""
        self._arrange()
        ring, step = self.ring, self._monitor.next_step
        if self.has_given_up or not ring.is_due(step) or (ring.kept and not self.is_arranged):
            return
        slot = ring.take(self._state, step)
        self.marks[step] = BoundaryMark(
            position=self._tape.position,
            num_updates=self._monitor.slow.num_updates,
            tokens=loop.batch_facts.tokens_seen,
        )
        self._forget_the_rest()
        if slot.has_gradients and not self._has_reported_gradients:
            self._has_reported_gradients = True
            log.warning(
                "trimtab: there are gradients between two steps, so each snapshot keeps them too; "
                "optimizer.zero_grad() at the end of a step saves that memory"
            )

    def find(self, step: int) -> tuple[Snapshot | None, str]:
        """The newest snapshot at or before a step, or why there is none."""
        if self.has_given_up or not self.ring.kept:
            return None, "there are no snapshots"
        slot = self.ring.newest_before(step)
        if slot is None:
            return None, f"the oldest snapshot is of step {self.ring.kept[0].step}"
        try:
            slot.verify(self._state)
        except RestoreError as error:
            return None, str(error)
        return slot, ""

    def drop_after(self, slot: Snapshot) -> None:
        """The run has gone back to a snapshot: those of the attempt that was given up go."""
        self.ring.drop_after(slot)
        self._forget_the_rest()

    def clear(self) -> None:
        """Drop all snapshots; later ones are taken again."""
        self.ring.clear()
        self.marks.clear()

    def give_up(self) -> None:
        """Keep nothing any more; the run stays protected. The other ranks follow."""
        self.has_given_up = True
        self._orders.set(slots=0, oldest=0)
        self.ring = SnapshotRing([], every=self.ring.every, oldest=self.ring.oldest)
        self.marks.clear()
        self._tape.keep_nothing()

    def keep_before(self, step: int | None) -> None:
        """Keep the newest snapshot before a step; called on the first rank, it holds on all."""
        if self._world == 1:
            self.ring.hold_before(step)
        else:
            self._orders.set(keep=0 if step is None else step + 1)

    def _forget_the_rest(self) -> None:
        kept = [slot.step for slot in self.ring.kept]
        self.marks = {step: self.marks[step] for step in kept}
        self._tape.forget_before(self.marks[kept[0]].position)

    # How many there are.

    def _arrange(self) -> None:
        """Plan when the state of the optimizers exists; then follow what the ranks agree on."""
        if not self._has_planned:
            plan = self._plan()
            if plan.slots == 0:
                self._report_no_memory()
                self.give_up()
            self._has_planned = self._has_updates
            if self._has_updates and self._world == 1 and not self.has_given_up:
                self._add_slots(plan, None)
            elif self._has_updates:
                self._orders.set(slots=-plan.slots, oldest=-plan.oldest, **self._sums())
        agreed = self._orders.agreed
        if self._world == 1 or agreed is None or agreed["slots"] > 0 or self.has_given_up:
            return
        self.ring.hold_before(agreed["keep"] - 1 if agreed["keep"] else None)
        plan = Plan(slots=-agreed["slots"], oldest=-agreed["oldest"])
        if plan.slots == 0:
            log.warning("trimtab: a rank keeps no snapshots, so the run cannot go back")
            self.give_up()
        elif not self.is_arranged:
            is_shared = agreed["sum"] == -agreed["minus_sum"]
            if not is_shared and self._num_replicas > 1:  # each needs a whole copy after all
                plan = Plan(slots=plan.slots // self._num_replicas, oldest=plan.oldest)
            handle = self._monitor.sync.ranks.group.handle
            self._add_slots(plan, ReplicaGroup.of(handle) if is_shared else None)

    def _plan(self) -> Plan:
        """What fits into the memory of this rank, by the state as it is now."""
        kept = self.ring.kept
        num_steps = max(self._monitor.next_step - kept[0].step, 1) if kept else 1
        return plan_slots(
            self._config,
            slot_bytes=slot_bytes(self._state, self._num_replicas),
            step_bytes=self._tape.num_bytes / num_steps,
            free_bytes=free_memory(),
            num_ranks=ranks_here(self._world),
        )

    @property
    def _num_replicas(self) -> int:
        """How many ranks probably share a snapshot: those of DDP."""
        is_ddp = any(isinstance(m, DistributedDataParallel) for m in self._state.model.modules())
        return self._world if is_ddp else 1

    def _sums(self) -> dict[str, int]:
        """A checksum of what ranks could share; different on every rank if they cannot."""
        tensors = list(self._state.tensors()["parameters"].values())
        if any(isinstance(tensor, DTensor) for tensor in tensors):
            rank = self._monitor.sync.ranks.group.rank
            return {"sum": rank + 1, "minus_sum": -rank - 1}
        states = self._state.optimizer_state()
        tensors += [t for o in states for s in o.values() for t in s.values() if torch.is_tensor(t)]
        total = sum(place * int(checksum(t)) for place, t in enumerate(tensors, 1))
        total %= 1 << _SUM_BITS
        return {"sum": total, "minus_sum": -total}

    def _add_slots(self, plan: Plan, replicas: ReplicaGroup | None) -> None:
        if plan.slots < MIN_SLOTS:
            self._report_no_memory()
            self.give_up()
            return
        self.is_arranged = True
        self.ring.add([Snapshot() for _ in range(plan.slots - 1)])
        self.ring.share(replicas)
        self.ring.oldest = plan.oldest
        if self._monitor.sync.ranks.group.rank == 0:
            log.info(
                "trimtab: the run can go back: %d snapshots of %.1f MiB on each rank, %d to %d "
                "steps old",
                plan.slots,
                slot_bytes(self._state, replicas.size if replicas else 1) / 2**20,
                self.ring.every,
                plan.oldest,
            )

    def _report_no_memory(self) -> None:
        log.warning(
            "trimtab: two snapshots of %.1f MiB and the batches between them do not fit into "
            "%.0f %% of the free host memory (recover.memory_share), so the run cannot go back; "
            "it stays protected",
            slot_bytes(self._state, self._num_replicas) / 2**20,
            100 * self._config.memory_share,
        )
