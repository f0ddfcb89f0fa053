"""Recovery: what happens at the boundary between two steps of a run that can go back.

A boundary is where `guard.steps` is asked for the next step: the user's `optimizer.step()`,
`scheduler.step()` and `zero_grad()` have run, and no graph refers to the weights. In the middle of
a step a restore would change weights that a backward pass still needs, and in a hook of the
optimizer the user's `scheduler.step()` would follow it.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trimtab.core.config import ProbesConfig, RecoverConfig
from trimtab.core.errors import RunStopped
from trimtab.core.events import RECOVERY
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.live.loop.step_loop import StepLoop
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.local_gradients import LocalGradients
from trimtab.live.optimizers import parameters_of
from trimtab.live.recover.decide.controller import Controller
from trimtab.live.recover.decide.run_view import RunView, view_of
from trimtab.live.recover.experiments.replay import Replay
from trimtab.live.recover.inputs import require_schedulers
from trimtab.live.recover.order import Order
from trimtab.live.recover.paired_probe import PairedProbe, no_batch_loss
from trimtab.live.recover.rank_orders import RankOrders
from trimtab.live.recover.returning import half_way, return_to
from trimtab.live.recover.rollback_report import report_rollback
from trimtab.live.recover.snapshots import Snapshots
from trimtab.live.shield import Shield, log
from trimtab.state.snapshot import Snapshot
from trimtab.state.tape import BatchTape
from trimtab.state.training_state import TrainingState

STEPPED_ASIDE = "trimtab does not watch the run any more"


class Recovery:
    """Takes snapshots of a run and returns to them."""

    def __init__(
        self,
        state: TrainingState,
        monitor: StepMonitor,
        config: RecoverConfig,
        shield: Shield,
        *,
        quarantined: Iterable[int | str],
        quarantine_file: Path,
        batch_loss: Callable[[Any], Any] | None = None,
        probes: ProbesConfig | None = None,
        settle: Callable[[], None] | None = None,
    ) -> None:
        self.state = state
        self.tape = BatchTape()
        self.attempt = 0
        """How often the run has gone back in this process."""
        self.on_return: Callable[[int], None] = lambda step: None
        """Called with the step when the run has gone back, before anything is journalled."""
        self._monitor = monitor
        self._shield = shield
        self._settle = settle
        """Waits for a checkpoint that is being written: a rollback would change what it reads."""
        agreed = monitor.sync.ranks.group.quarantined
        self._quarantined = set(quarantined if agreed is None else agreed)
        self._quarantine_file = quarantine_file
        self._pass_over()
        device = monitor.meter.device
        self._rank_orders = RankOrders(
            device,
            lambda: self._is_first_rank,
            LocalGradients(parameters_of(state.optimizers), device),
        )
        monitor.sync.orders = self._rank_orders
        self.snapshots = Snapshots(state, self.tape, monitor, self._rank_orders, config)
        self.replay = Replay(
            state,
            monitor,
            self.snapshots,
            self.tape,
            probes or ProbesConfig(),
            self._rank_orders.local_gradients,
            settle,
        )
        self._orders: list[Order] = []
        self._tried: Order | None = None
        """A rollback that was tried at the last boundary and is to be carried out."""
        self.controller: Controller | None = None
        """What decides, on the first rank."""
        self._can_probe = batch_loss is not None
        self._probe = PairedProbe(
            state.model,
            batch_loss or no_batch_loss,
            lambda values: monitor.sync.ranks.sum(values)[1:],
            monitor.meter.device,
            monitor.slow.activations,
        )
        self._has_started = self._has_reported_changes = False
        if monitor.recorder is not None:
            facts = {"oldest_steps": config.oldest_steps, "snapshot_every": config.snapshot_every}
            monitor.recorder.event(RECOVERY, monitor.next_step, facts)

    @property
    def num_skipped(self) -> int:
        """How many batches have been left out by their position so far."""
        return sum(isinstance(at, int) and at < self.tape.position for at in self._quarantined)

    @property
    def _is_first_rank(self) -> bool:
        return self._monitor.sync.ranks.group.rank == 0

    def order(self, order: Order) -> None:
        """Do this at the next boundary; with several ranks the first one's orders count."""
        ranks = self._monitor.sync.ranks
        if not self._is_first_rank or self.replay.is_running:
            return
        if order.to is not None:
            problem = ""
            if not self._has_started:
                problem = "it needs the data to be gone through by guard.steps(loader)"
            elif self.snapshots.has_given_up:
                problem = "there are no snapshots"
            elif not self._monitor.is_watching or (ranks.world > 1 and not self._has_gate):
                problem = STEPPED_ASIDE
            elif ranks.world > 1 and not self.snapshots.is_arranged:
                problem = "the ranks have not agreed on snapshots (do all use guard.steps?)"
            if problem:
                self._refuse(order, problem)
                return
        if ranks.world == 1:
            self._orders.append(order)
        else:
            self._rank_orders.issue(order)

    def start(
        self, loader: Iterable[Any], batches: Iterable[Any], position: int | None
    ) -> BatchTape:
        """Go on with a loader and its batches; `position` is that of the first, if it is known."""
        if not self._has_started:
            require_schedulers(self.state.optimizers, self.state.schedulers)
            self._has_started = True
        if position is not None and position != self.tape.position:
            if self.snapshots.ring.kept:
                log.info("trimtab: the data position was set, so earlier snapshots are dropped")
            self.snapshots.clear()
            self.tape.jump(position)
            self._pass_over()
        self.tape.start(loader, batches)
        return self.tape

    def _pass_over(self) -> None:
        """Let the tape pass over what is quarantined."""
        self.tape.skip(what for what in self._quarantined if isinstance(what, int))
        for source in self._quarantined:
            if isinstance(source, str):
                self.tape.quarantine(source)

    def boundary(self, loop: StepLoop) -> None:
        """Between two steps: carry out an order, or take a snapshot if one is due."""
        monitor, ranks = self._monitor, self._monitor.sync.ranks
        is_closed = monitor.sync.is_closed
        if is_closed and (ranks.world == 1 or ranks.has_parted):
            return
        if not is_closed:
            self._look(loop)
        # A rank that was closed still carries out what the others may have seen before they part.
        orders = self._due()
        if self._tried is not None:
            orders, self._tried = [*orders, self._tried], None
        while probes := [order for order in orders if order.probe]:
            for order in probes:
                self._read(order, loop)
            # With one rank, what follows from a reading is done at the same boundary.
            orders = [order for order in orders if not order.probe] + self._orders
            self._orders = []
        for order in orders:
            if order.exit_code is not None:
                self._stop(order, RunExit(order.exit_code))
            if order.watch_ranks is not None:
                local = self._rank_orders.local_gradients
                local.arm() if order.watch_ranks else local.disarm()
            if order.release:
                monitor.holds.release(order.release)
            if order.hold_at is not None:
                self._hold(order, order.hold_at)
        rollbacks = [order for order in orders if order.to is not None]
        tried = rollbacks[-1].experiment if rollbacks else None
        if tried is not None and monitor.is_between_steps and not is_closed:
            # Carried out at the next boundary, on all ranks, whatever the answer is.
            self._tried = dataclasses.replace(rollbacks[-1], experiment=None)
            self.replay.start_ordered([tried], loop)
        elif rollbacks:
            self._roll_back(rollbacks[-1], loop)
        elif monitor.is_between_steps and not self.snapshots.has_given_up and not is_closed:
            is_done = False
            with self._shield.guarding("snapshot"):
                self.snapshots.take_if_due(loop)
                is_done = True
            if not is_done:
                self.snapshots.give_up()
            self.replay.start_ordered([order.experiment for order in orders], loop)
        monitor.holds.begin_step(monitor.next_step)
        if self.tape.changed is not None and not self._has_reported_changes:
            self._has_reported_changes = True
            log.warning(
                "trimtab: the training loop changes its batches in place, so the one at position "
                "%d is trained on again as the loop has left it; from now on batches are copied",
                self.tape.changed,
            )

    # What the ladder asks for.

    def _look(self, loop: StepLoop) -> None:
        """Let the first rank decide."""
        if self.controller is not None and not self._shield.is_down:
            with self._shield.guarding("decision"):
                self.controller.look(self._view(loop))

    def _view(self, loop: StepLoop) -> RunView:
        return view_of(
            self.state,
            self._monitor.holds,
            self.snapshots.ring,
            self.tape,
            step=self._monitor.next_step,
            accumulate=loop.accumulate,
            world=self._monitor.sync.ranks.world,
            can_probe=self._can_probe and not self._probe.has_failed,
        )

    def _read(self, order: Order, loop: StepLoop) -> None:
        """Probe the weights; all ranks do it at the same boundary."""
        batches = {
            part.step: [self.tape.batch_at(position) for position in part.positions]
            for part in order.probe
        }
        found = self._probe.read(batches, {part.step: part.trained for part in order.probe})
        if self.controller is not None and not self._shield.is_down:
            with self._shield.guarding("decision"):
                self.controller.on_reading(found, self._view(loop))

    def _hold(self, order: Order, step: int) -> None:
        slot, problem = self.snapshots.find(step)
        if slot is None:
            log.warning("trimtab: cannot hold %s: %s", ", ".join(order.hold), problem)
            return
        self._monitor.holds.add(order.hold, slot)
        if self._is_first_rank:
            log.warning("trimtab: held: %s; %s", ", ".join(order.hold), order.reason)

    def _stop(self, order: Order, code: RunExit) -> None:
        """End the run on all ranks; the first one leaves the request for a supervisor."""
        recorder = self._monitor.recorder
        if recorder is not None:
            with self._monitor.shields.host.guarding("exit request"):
                step = self._monitor.next_step
                ExitRequest(code=code, reason=order.reason, step=step).write(recorder.run)
        raise RunStopped(order.reason, code)

    @property
    def _has_gate(self) -> bool:
        gate = self._monitor.gate
        return gate is not None and not gate.has_parted

    def _due(self) -> list[Order]:
        """What is to be done at this boundary; the same on all ranks."""
        ranks = self._monitor.sync.ranks
        if ranks.world == 1:
            orders, self._orders = self._orders, []
            return orders
        seen = self._rank_orders.pop()
        if seen is None or ranks.has_parted:
            return []
        handle = ranks.group.handle
        return self._rank_orders.exchange(*seen, handle, dist.get_global_rank(handle, 0))

    def _roll_back(self, order: Order, loop: StepLoop) -> None:
        monitor, ranks = self._monitor, self._monitor.sync.ranks
        slot, problem = self.snapshots.find(order.to or 0)
        step = slot.step if slot is not None else -1
        if ranks.world > 1:
            cannot, largest, minus_least = ranks.agree([int(slot is None), step, -step])
            if cannot or largest != -minus_least:
                problem, slot = problem or "a rank does not have that snapshot", None
        if slot is not None:
            if self._settle is not None:
                self._settle()
            monitor.sync.settle()
            if ranks.has_parted:
                problem, slot = STEPPED_ASIDE, None
        if slot is None:
            self._refuse(order, problem)
            return
        came_from = monitor.next_step
        try:
            self._return_to(slot, order, loop)
        except Exception as error:
            raise half_way(slot, error) from error
        self.on_return(slot.step)
        if self._is_first_rank:
            report_rollback(
                order,
                came_from,
                slot.step,
                monitor.recorder,
                monitor.shields.host,
                self._quarantine_file,
            )
        # The last thing of all: everything else may draw random numbers.
        slot.put_random_state()

    def _return_to(self, slot: Snapshot, order: Order, loop: StepLoop) -> None:
        monitor, mark = self._monitor, self.snapshots.marks[slot.step]
        return_to(
            slot,
            self.state,
            monitor,
            self.tape,
            position=mark.position,
            num_updates=mark.num_updates,
            skip=order.skip,
        )
        self._quarantined |= set(order.skip)
        if order.quarantine is not None:
            self._quarantined.add(order.quarantine)
            self.tape.quarantine(order.quarantine)
        loop.batch_facts.tokens_seen = mark.tokens
        monitor.holds.add(order.hold, slot)
        if order.lr_factor is not None:
            monitor.holds.lower_rate(order.lr_factor, slot.step)
        self.attempt += 1
        self._rank_orders.forget()
        if self.controller is not None:
            self.controller.rolled_back(slot.step)
        self._rank_orders.set(attempt=self.attempt, minus_attempt=-self.attempt)
        self.snapshots.drop_after(slot)

    def _refuse(self, order: Order, problem: str) -> None:
        if self._is_first_rank:
            log.warning(
                "trimtab: no rollback to step %d: %s; training continues", order.to, problem
            )
