"""Recovery: what happens at the boundary between two steps of a run that can go back.

A boundary is where `guard.steps` is asked for the next step: the user's `optimizer.step()`,
`scheduler.step()` and `zero_grad()` have run, and no graph refers to the weights. In the middle of
a step a restore would change weights that a backward pass still needs, and in a hook of the
optimizer the user's `scheduler.step()` would follow it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.fsdp import FSDPModule

from trimtab.core.config import RecoverConfig
from trimtab.core.errors import RestoreError, RunStopped
from trimtab.core.rollbacks import RECOVERY
from trimtab.live.loop.step_loop import StepLoop
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.recover.boundary import BoundaryMark
from trimtab.live.recover.controller import Controller
from trimtab.live.recover.inputs import require_schedulers
from trimtab.live.recover.memory import free_memory, plan_slots, ranks_here, slot_bytes
from trimtab.live.recover.order import Order, as_ranges
from trimtab.live.recover.paired_probe import PairedProbe
from trimtab.live.recover.quarantine import add_to_quarantine
from trimtab.live.recover.run_view import RunView, rate_ratio, settings_now, settings_of
from trimtab.live.shield import Shield, log
from trimtab.restore.ring import SnapshotRing
from trimtab.restore.snapshot import Snapshot
from trimtab.restore.tape import BatchTape
from trimtab.restore.training_state import TrainingState


class Recovery:
    """Takes snapshots of a run and returns to them."""

    def __init__(
        self,
        state: TrainingState,
        monitor: StepMonitor,
        config: RecoverConfig,
        shield: Shield,
        *,
        quarantined: Iterable[int],
        quarantine_file: Path,
        batch_loss: Callable[[Any], Any] | None = None,
    ) -> None:
        self.state = state
        self.tape = BatchTape()
        self.ring = SnapshotRing(
            [Snapshot()], every=config.snapshot_every, oldest=config.oldest_steps
        )
        self.attempt = 0
        """How often the run has gone back in this process."""
        self._monitor = monitor
        self._config = config
        self._shield = shield
        agreed = monitor.sync.ranks.group.quarantined
        self._quarantined = set(quarantined if agreed is None else agreed)
        self._quarantine_file = quarantine_file
        self.tape.skip(self._quarantined)
        self._marks: dict[int, BoundaryMark] = {}
        """What belongs to each snapshot, by its step."""
        self._orders: list[Order] = []
        self.controller: Controller | None = None
        """What decides, on the first rank."""
        self.probe: PairedProbe | None = None
        if batch_loss is not None:
            self.probe = PairedProbe(
                state.model,
                batch_loss,
                lambda values: monitor.sync.ranks.sum(values)[1:],
                monitor.meter.device,
                monitor.slow.activations,
            )
        self._has_started = self._is_planned = False
        self._has_given_up = False
        if monitor.recorder is not None:
            facts = {"oldest_steps": config.oldest_steps, "snapshot_every": config.snapshot_every}
            monitor.recorder.event(RECOVERY, monitor.next_step, facts)
        self._reported: set[str] = set()

    def order(self, order: Order) -> None:
        """Do this at the next boundary."""
        if order.to is not None and not self._has_started:
            log.warning(
                "trimtab: no rollback to step %d: it needs the data to be gone through by "
                "guard.steps(loader); training continues",
                order.to,
            )
            return
        self._orders.append(order)

    def start(self, loader: Iterable[Any], position: int | None) -> BatchTape:
        """Go on with a loader; `position` is that of its first batch, if the user gives it."""
        if not self._has_started:
            require_schedulers(self.state.optimizers, self.state.schedulers)
            self._has_started = True
        if position is not None and position != self.tape.position:
            if self.ring.kept:
                log.info("trimtab: the data position was set, so earlier snapshots are given up")
            self.ring.clear()
            self._marks.clear()
            self.tape.jump(position)
            self.tape.skip(self._quarantined)
        self.tape.start(loader)
        return self.tape

    def boundary(self, loop: StepLoop) -> None:
        """Between two steps: carry out an order, or take a snapshot if one is due."""
        monitor = self._monitor
        if monitor.sync.is_closed:
            return
        self._look(loop)
        orders, self._orders = self._orders, []
        while any(order.probe for order in orders):
            for order in orders:
                if order.probe:
                    self._read(order, loop)
            orders = [order for order in orders if not order.probe] + self._orders
            self._orders = []
        for order in orders:
            if order.exit_code is not None:
                raise RunStopped(order.reason, order.exit_code)
            if order.release:
                monitor.holds.release(order.release)
            if order.hold_at is not None:
                self._hold(order)
        rollbacks = [order for order in orders if order.to is not None]
        if rollbacks:
            self._roll_back(rollbacks[-1], loop)
        elif monitor.is_between_steps and not self._has_given_up:
            is_taken = False
            with self._shield.guarding("snapshot"):
                self._take_if_due(loop)
                is_taken = True
            if not is_taken:
                self._give_up()
        monitor.holds.set_requires_grad()
        if self.tape.changed is not None:
            self._report_once(
                "trimtab: the training loop changes its batches in place, so the batch at "
                f"position {self.tape.changed} is trained on as it was left; from now on each "
                "batch is copied before it is handed out"
            )

    # What the ladder asks for.

    def _look(self, loop: StepLoop) -> None:
        """Let the first rank decide."""
        controller = self.controller
        if controller is not None and not self._shield.is_down:
            with self._shield.guarding("decision"):
                controller.look(self._view(loop))

    def _view(self, loop: StepLoop) -> RunView:
        return RunView(
            step=self._monitor.next_step,
            accumulate=loop.accumulate,
            next_position=self.tape.position,
            slots=tuple(slot.step for slot in self.ring.kept),
            settings=partial(
                settings_now, self._monitor.holds, self.state, self._monitor.next_step
            ),
            settings_at=lambda: [settings_of(slot) for slot in self.ring.kept],
            rate_ratio=partial(rate_ratio, self._monitor.holds, self.state),
            can_probe=self.probe is not None and not self.probe.has_failed,
        )

    def _read(self, order: Order, loop: StepLoop) -> None:
        """Probe the weights; all ranks do it at the same boundary."""
        if self.probe is None:
            return
        steps = {
            part.step: [self.tape.batch_at(position) for position in part.positions]
            for part in order.probe
        }
        found = self.probe.read(steps, {part.step: part.trained for part in order.probe})
        if self.controller is not None and not self._shield.is_down:
            with self._shield.guarding("decision"):
                value = None if found is None else found.value
                self.controller.on_reading(value, self._view(loop))

    def _hold(self, order: Order) -> None:
        slot = self.ring.newest_before(order.hold_at or 0)
        if slot is not None:
            self._monitor.holds.add(order.hold, slot)
            log.warning("trimtab: held: %s; %s", ", ".join(order.hold), order.reason)

    # Snapshots.

    def _take_if_due(self, loop: StepLoop) -> None:
        monitor, ring = self._monitor, self.ring
        step = monitor.next_step
        if not self._is_planned and (monitor.slow.num_updates or not ring.kept):
            self._plan(step)
        if self._has_given_up or not ring.is_due(step) or (ring.kept and not self._is_planned):
            return
        slot = ring.take(self.state, step)
        self._marks[step] = BoundaryMark(
            position=self.tape.position,
            num_updates=monitor.slow.num_updates,
            tokens=loop.batch_facts.tokens_seen,
        )
        self._forget_the_rest()
        if slot.has_gradients:
            self._report_once(
                "trimtab: there are gradients between two steps, so each snapshot keeps them too; "
                "optimizer.zero_grad() at the end of a step saves that memory"
            )

    def _plan(self, step: int) -> None:
        """Decide how many snapshots there are: when the state of the optimizers exists."""
        kept = self.ring.kept
        bytes_each = slot_bytes(self.state, 1)
        num_steps = max(step - kept[0].step, 1) if kept else 1
        plan = plan_slots(
            self._config,
            slot_bytes=bytes_each,
            step_bytes=self.tape.num_bytes / num_steps,
            free_bytes=free_memory(),
            num_ranks=ranks_here(self._monitor.sync.ranks.world),
        )
        if plan.slots == 0:
            log.warning(
                "trimtab: two snapshots of %.1f MiB do not fit into %.0f %% of the free host "
                "memory (recover.memory_share), so this run cannot go back; it stays protected",
                bytes_each / 2**20,
                100 * self._config.memory_share,
            )
            self._give_up()
        elif self._monitor.slow.num_updates:
            self._is_planned = True
            self.ring.add([Snapshot() for _ in range(plan.slots - 1)])
            self.ring.oldest = plan.oldest
            log.info(
                "trimtab: the run can go back: %d snapshots of %.1f MiB on each rank, %d to %d "
                "steps old",
                plan.slots,
                bytes_each / 2**20,
                self.ring.every,
                plan.oldest,
            )

    def _give_up(self) -> None:
        """Keep nothing any more; the run stays protected."""
        self._has_given_up = True
        self.ring = SnapshotRing([], every=self.ring.every, oldest=self.ring.oldest)
        self._marks.clear()
        self.tape.keep_nothing()

    def _forget_the_rest(self) -> None:
        """Drop what belongs to snapshots that are not kept any more."""
        kept = [slot.step for slot in self.ring.kept]
        self._marks = {step: self._marks[step] for step in kept}
        self.tape.forget_before(self._marks[kept[0]].position)

    # Rollbacks.

    def _roll_back(self, order: Order, loop: StepLoop) -> None:
        slot, problem = self._find(order)
        if slot is None:
            log.warning(
                "trimtab: no rollback to step %d: %s; training continues", order.to, problem
            )
            return
        monitor = self._monitor
        came_from = monitor.next_step
        monitor.sync.settle()
        try:
            self._return_to(slot, order, loop)
        except Exception as error:
            raise RestoreError(
                f"the return to step {slot.step} failed half-way ({type(error).__name__}: {error}),"
                " so weights and optimizer may be of different steps: restart from the last "
                "checkpoint"
            ) from error
        self._report(slot, order, came_from)
        # The last thing of all: everything else may draw random numbers.
        slot.put_random_state()

    def _find(self, order: Order) -> tuple[Snapshot | None, str]:
        """The snapshot to return to, or why there is none; nothing is changed."""
        if self._has_given_up or not self.ring.kept:
            return None, "there are no snapshots"
        slot = self.ring.newest_before(order.to or 0)
        if slot is None:
            return None, f"the oldest snapshot is of step {self.ring.kept[0].step}"
        try:
            slot.verify(self.state)
        except RestoreError as error:
            return None, str(error)
        return slot, ""

    def _return_to(self, slot: Snapshot, order: Order, loop: StepLoop) -> None:
        monitor, mark = self._monitor, self._marks[slot.step]
        slot.put(self.state)
        for module in self.state.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        self.tape.rewind(mark.position, order.skip)
        loop.batch_facts.tokens_seen = mark.tokens
        monitor.return_to(slot.step, mark.num_updates)
        if monitor.gate is not None:
            monitor.gate.buffers.renew()
        monitor.holds.add(order.hold, slot)
        self._quarantined |= set(order.skip)
        self.attempt += 1
        self.ring.drop_after(slot)
        self._forget_the_rest()

    def _report(self, slot: Snapshot, order: Order, came_from: int) -> None:
        lost = came_from - slot.step
        skipped = as_ranges(order.skip)
        log.warning(
            "trimtab: rolled back from step %d to step %d (%d steps are done again)%s%s%s",
            came_from,
            slot.step,
            lost,
            f"; data positions skipped: {len(order.skip)}" if order.skip else "",
            f"; held: {', '.join(order.hold)}" if order.hold else "",
            f"; {order.reason}" if order.reason else "",
        )
        recorder = self._monitor.recorder
        if recorder is not None:
            with self._monitor.shields.host.guarding("rollback"):
                facts = {
                    "from": came_from,
                    "to": slot.step,
                    "skip": skipped,
                    "hold": list(order.hold),
                    "reason": order.reason,
                    "steps_lost": lost,
                }
                recorder.rolled_back(slot.step, facts)
            with self._monitor.shields.host.guarding("quarantine"):
                add_to_quarantine(
                    self._quarantine_file, order.skip, step=slot.step, reason=order.reason
                )

    def _report_once(self, sentence: str) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            log.warning("%s", sentence)
