"""Undo: puts a harmed state back to a snapshot, inside `optimizer.step()`.

    pre-hook    bits are summed again (`MemoryWatch`); what all ranks found `lag` exchanges ago
                arrives. If nothing was finite then, the state is audited at once. If there is proof
                of harm, the snapshot is restored and the gradients at hand are dropped: no step is
                taken
    post-hook   if a snapshot is due (`SnapshotSchedule`), the state is audited (`StateAudit`) and
                copied (`Snapshots`); bits are summed (`MemoryWatch`)

Between finding and restoring, the gate discards the updates: a harmed state is not trained. The
loop, its data, its schedules and its random numbers go on: some updates are lost, nothing else.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core.config import RecoverConfig
from trimtab.core.errors import RestoreError, RunStopped
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.live.loop.state_guard import StateGuard
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.step_meter import is_finite_step
from trimtab.live.measure.time_budget import TimeBudget
from trimtab.live.protect.discard import Discard
from trimtab.live.ranks.exchange import RankSync
from trimtab.live.recover.audit import Reference, StateAudit
from trimtab.live.recover.experiments import Experiments
from trimtab.live.recover.memory_watch import TIME_SHARE, MemoryWatch
from trimtab.live.recover.rules import (
    AUDIT_FIELDS,
    FIELDS,
    MEMORY_FIELDS,
    RETURN_STEPS,
    STUCK_STEPS,
    STUCK_STEPS_WITH_SCALER,
    TRIAL_FIELDS,
    PastUndo,
    Proof,
    StateFindings,
    UndoHistory,
    read_exchange,
)
from trimtab.live.recover.scaler_watch import ScalerWatch
from trimtab.live.recover.tracked_optimizer import (
    SNAPSHOT_SHARE,
    SnapshotSchedule,
    TrackedOptimizer,
)
from trimtab.live.recover.trial import Offer, StateTrial
from trimtab.live.recover.undo_plan import (
    MAX_WAIT,
    NO_SNAPSHOT,
    PendingUndo,
    RunRequests,
    UndoPlanner,
    UndoReport,
)
from trimtab.live.recover.undo_report import UndoReporter
from trimtab.live.shield import DELIBERATE, Shield, log
from trimtab.state.snapshots import Snapshots, reshard, running_statistics

NONE = StateFindings()
"""What most exchanges find."""

UNABLE = "a rank has left, or its snapshots have failed"


class StateCheck(NamedTuple):
    """The subject of one exchange."""

    tracked: TrackedOptimizer
    update: int
    """How many updates the optimizer had made before it."""
    audited_snapshot: int | None
    """The snapshot whose state was audited; None if none was."""
    num_findings: int
    """How often this rank had found something that may be harm, before it."""


class Undo(StateGuard):
    """Watches over the trained state of a run, and restores it."""

    def __init__(
        self,
        model: nn.Module,
        monitor: StepMonitor,
        snapshots: Snapshots,
        config: RecoverConfig,
        shield: Shield,
        *,
        lag: int,
        requests: RunRequests,
        report: UndoReporter,
        polls: Sequence[Callable[[], None]],
        experiments: Experiments | None,
        trial: StateTrial,
        scaler: Any,
    ) -> None:
        device = monitor.meter.device
        self._model = model
        self._monitor = monitor
        num_optimizers = len(monitor.optimizers)
        sums = TimeBudget(monitor.clock, TIME_SHARE / num_optimizers)
        copies = TimeBudget(monitor.clock, SNAPSHOT_SHARE / num_optimizers)
        is_on_host = monitor.meter.arithmetic.is_host
        self._tracked = {
            optimizer: TrackedOptimizer(
                optimizer,
                index,
                MemoryWatch(device, sums, is_on_host=is_on_host),
                StateAudit(optimizer, device, model if index == 0 else None),
                SnapshotSchedule(config.snapshot_every, lag, copies, device, trial.intervals),
            )
            for index, optimizer in enumerate(monitor.optimizers)
        }
        self._snapshots = snapshots
        self._device = device
        self._shield = shield
        self._report = report
        self._experiments = experiments
        self._trial = trial
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._history = UndoHistory()
        self._planner = UndoPlanner(
            list(self._tracked.values()), snapshots, self._history, self._names
        )
        self.num_fields = len(FIELDS)
        self._unable = torch.tensor([float(name == "unable") for name in FIELDS], device=device)
        self._sound = (torch.zeros(len(FIELDS), device=device),)
        """What a rank sends that has found nothing."""
        self._harm = self._no_harm = torch.zeros(1, device=device)
        """1 from when this rank found harm until it is dealt with: the gate discards meanwhile."""
        self._num_findings = 0
        """How often harm may have been found; only the device knows whether it was."""
        self._constants: dict[tuple[float, ...], torch.Tensor] = {}
        self._requests = requests
        self._polls = polls
        """Are called in every update; each has a shield of its own."""
        self._must_end = False
        """Whether all ranks have heard that the first one ends the run."""
        self._pending: PendingUndo | None = None
        self._buffers_repaired_at = -RETURN_STEPS
        """Updates made when running statistics were repaired last, or could not be."""
        self._has_told_of_writes = False
        self._discard = Discard()
        self.is_off = False
        """Whether all ranks have agreed that there are no snapshots."""
        self._stuck_steps = STUCK_STEPS if scaler is None else STUCK_STEPS_WITH_SCALER
        self._scaler = ScalerWatch(
            scaler,
            monitor.entrance,
            num_updates=self.num_updates,
            after_skip=self.after_skip,
        )

    @property
    def harm(self) -> torch.Tensor:
        return self._harm

    @property
    def unable(self) -> tuple[torch.Tensor, ...]:
        return (self._unable,)

    def request(self, updates: int) -> None:
        """Undo at least so many updates as soon as all ranks know; the first rank's call counts."""
        if self._ranks.group.rank == 0:
            self._requests.undo(updates)

    def remember(self, batch: Any) -> None:
        if self._experiments is not None:
            self._experiments.remember(batch)

    def note_change(self) -> None:
        """Let nothing be restored unasked from before a change that code has announced."""
        self._trial.announced_at = self._total_updates

    @property
    def _ranks(self) -> RankSync:
        return self._monitor.sync.ranks

    @property
    def _is_idle(self) -> bool:
        return self.is_off or self._shield.is_down

    def num_updates(self, optimizer: Optimizer) -> int | None:
        """Return how often an optimizer has been stepped; None if it is not watched."""
        tracked = self._tracked.get(optimizer)
        return None if tracked is None else tracked.num_updates

    # In every update, on all ranks.

    def to_send(self, optimizer: Optimizer) -> tuple[StateCheck, tuple[torch.Tensor, ...]]:
        """Return what this rank found in an optimizer's state since its last update."""
        tracked = self._tracked[optimizer]
        memory = audit = returned = None
        audited: int | None = None
        is_edited = is_requested = False
        if self.is_off or self._shield.is_down:  # nothing is restored, so nothing waits for it
            self._harm = self._no_harm
        else:
            with self._shield.guarding("watching memory"):
                now = tracked.state.fingerprint()
                memory = tracked.memory_watch.before_update(now)
                is_edited = tracked.find_edit(now)
                returned = self._has_returned(tracked) if is_edited else None
                audited, audit = tracked.pop_audit()
                if is_edited and self._snapshots.is_copying:
                    audited = None  # the copy may be of both states
                self._snapshots.before_update(tracked.index, tracked.num_updates)
                if tracked.is_examined:
                    audited, audit = None, tracked.audit.audit(now.parts, self._reference(tracked))
                if memory is not None or audit is not None:
                    self._note_harm(tracked, memory, audit)
                is_requested = tracked.schedule.pop_request(tracked.num_updates)
        requests = self._requests
        trial, scores = (False, False, not self.is_off), None
        if not self._is_idle:
            found = self._trial.shield.call("trial of states", self._trial.to_send, tracked)
            trial, scores = found or (trial, scores)
        facts = (
            *(audited is not None, is_edited, self._snapshots.is_cramped),
            is_requested and self._ranks.group.rank == 0,
            *(requests.pop_order(), bool(requests.relaunch_reason), self._shield.is_down),
            *trial,
        )
        tracked.is_sent_examined, tracked.is_examined = tracked.is_examined, False
        check = StateCheck(tracked, tracked.num_updates, audited, self._num_findings)
        is_sound = all(found is None for found in (memory, audit, returned, scores))
        if is_sound and self._harm is self._no_harm and not any(facts):
            return check, self._sound
        return check, (
            self._constant((0.0,) * len(MEMORY_FIELDS)) if memory is None else memory,
            self._constant((0.0,) * len(AUDIT_FIELDS)) if audit is None else audit,
            self._constant((0.0,)) if returned is None else returned,
            self._constant(tuple(map(float, facts))),
            self._constant((0.0,) * len(TRIAL_FIELDS)) if scores is None else scores,
            self._harm,
        )

    def _note_harm(
        self, tracked: TrackedOptimizer, memory: torch.Tensor | None, audit: torch.Tensor | None
    ) -> None:
        """Let the gate discard updates if one of the findings stops training.

        What is not finite stops training by itself, or is the user's.
        """
        self._num_findings += 1
        impossible = AUDIT_FIELDS.index("impossible")
        for proof, values, place in (
            (Proof.FLIPPED, memory, 0),
            (Proof.IMPOSSIBLE, audit, impossible),
        ):
            if values is not None and not self._history.is_refused(proof, tracked.num_updates):
                self._harm = torch.maximum(self._harm, values[place].clamp(max=1.0))

    def receive(
        self, check: StateCheck, values: Sequence[float], *, is_finite: bool, loss: float | None
    ) -> None:
        """Take what all ranks found in an exchange, and decide; the same on every rank.

        Gradients that are not finite may come from the state: it is audited now, or with several
        ranks in the next exchange, which is read at once. While a run stands still waiting costs
        nothing.
        """
        tracked = check.tracked
        if values[-1] == 0 and check.num_findings == self._num_findings:
            self._harm = self._no_harm
        findings = StateFindings(**dict(zip(FIELDS, values, strict=True))) if any(values) else NONE
        if not self.is_off and self._pending is None:
            self._hear_trial(check, findings, loss)
        if is_finite and findings is NONE:
            if not self.is_off and check.update > tracked.last_restored_update:
                tracked.count_nonfinite(check.update, is_finite=True)
            return
        self._must_end = self._must_end or findings.relaunch > 0
        if self.is_off:
            return
        is_about_now = check.update > tracked.last_restored_update  # else it has been undone
        if is_about_now:
            tracked.count_nonfinite(check.update, is_finite=is_finite)
            is_needed = not is_finite and self._pending is None
            tracked.is_examined = is_needed and self._ranks.world > 1
            if is_needed and self._ranks.world == 1:
                findings = replace(findings, **self._audit_now(tracked))
        if findings.unable:
            self._give_up()
            return
        if check.audited_snapshot is not None and findings.audited == self._ranks.world:
            if is_finite:
                tracked.audit.accept_infinities()
            if findings.is_sound:
                self._snapshots.mark_clean(tracked.index, check.audited_snapshot)
        if findings.cramped:
            tracked.schedule.spare_memory()
        if findings.snapshot:
            tracked.schedule.add(tracked.num_updates + 1)
        if findings.written or findings.edited:
            tracked.note_edit(check.update, is_counted=findings.edited > 0)
        if findings.written and not self._has_told_of_writes:
            self._has_told_of_writes = True
            log.info(
                "trimtab: your code wrote weights through `.data` or NumPy; these tensors are not "
                "checked for flipped bits, only for values that are not finite"
            )
        if findings.returned and tracked.restored_tensor is not None:
            self._report.harm_returned(self._names.get(id(tracked.restored_tensor.tensor)))
            tracked.restored_tensor = None
        if findings.nonfinite_buffers and is_finite:
            self._repair_buffers(tracked, findings)
        proof = self._proof(tracked, findings, is_finite=is_finite)
        if proof is not None and self._pending is None and is_about_now:
            self._decide(proof, findings, tracked)
        elif proof is None and findings.flipped:  # on all ranks alike: code
            self._harm = self._no_harm

    def end_if_asked(self) -> None:
        if not self._must_end:
            return
        reason = self._requests.relaunch_reason or "the first rank has ended the run"
        recorder = self._monitor.recorder
        if recorder.is_recording:
            with self._shield.guarding("exit request"):
                step = self._monitor.next_step
                request = ExitRequest(code=RunExit.RELAUNCH, reason=reason, step=step)
                request.write(recorder.run)
        raise RunStopped(reason, RunExit.RELAUNCH)

    def poll(self) -> None:
        try:
            for poll in self._polls:
                poll()
        except Exception as error:
            self._fail(error)

    def restore_if_due(self, optimizer: Optimizer) -> bool:
        tracked = self._tracked[optimizer]
        if self._is_idle or (self._pending is None and not tracked.is_sent_examined):
            return False
        try:
            return self._restore_if_due(tracked)
        except Exception as error:
            self._fail(error)
            return False

    def _fail(self, error: Exception) -> None:
        """Undo nothing any more; raise if another rank may just be restoring its state."""
        if isinstance(error, DELIBERATE):
            raise error
        if self._pending is not None and self._ranks.world > 1:
            raise _half_way(f"{type(error).__name__}: {error}") from error
        self._pending = None
        self._shield.catch("undo", error)

    def _restore_if_due(self, tracked: TrackedOptimizer) -> bool:
        optimizer = tracked.optimizer
        self._examine(tracked)
        pending = self._pending
        if pending is None:
            return False
        if self._ranks.world > 1:
            # A rank may have failed to hear of it. With the next exchange it says so, to all alike.
            if pending.decided_at == self._monitor.sync.num_exchanges:
                return False
            num_leaving, findings, _ = read_exchange(self._ranks)
            if num_leaving or findings.unable:
                if pending.has_begun:
                    raise _half_way(UNABLE)
                self._cancel(tracked, UNABLE)
                return False
        targets = pending.snapshots
        if tracked.num_updates - tracked.requested_at > MAX_WAIT:
            # The others do not step any more: their training may be over.
            for index in [index for index in targets if index != tracked.index]:
                del targets[index]
        if tracked.index not in targets:
            self._pending = pending if targets else None
            return False
        if tracked.index > 0 and 0 in targets:
            # All begin in the same step: gradients of a mixed state are of no use.
            self._discard.via_missing_grads(optimizer)
            return True
        if tracked.index == 0 and any(
            self._snapshots.newest(*at) != at[1] for at in targets.items()
        ):
            # Code has added or replaced parameters since it was decided; nothing is written yet.
            self._cancel(tracked, NO_SNAPSHOT)
            return False
        self._restore(tracked, targets.pop(tracked.index), pending)
        # Last: it notes the optimizer's counters, to put them back after the step.
        self._discard.via_missing_grads(optimizer)
        if not targets:
            self._pending = None
        return True

    def after_update(self, optimizer: Optimizer) -> None:
        """Audit and copy the state if that is due, and sum its bits."""
        tracked = self._tracked[optimizer]
        self._discard.undo(optimizer)
        tracked.last_step_total = self._total_updates + 1
        tracked.num_updates += 1
        if self._is_idle:
            return
        with self._shield.guarding("snapshot"):
            self._snapshots.after_update(tracked.index)
            tracked.travel = tracked.travel.add(optimizer)
            is_copied = False
            if tracked.schedule.is_due(tracked.num_updates):
                tracked.schedule.start()
                tracked.audit_snapshot()
                # A snapshot would overwrite the one that is to be restored, or may have to be.
                is_free = self._pending is None and self._trial.open_trial is None
                if is_copied := is_free and not tracked.num_nonfinite:
                    is_usual = self._snapshots.take(tracked.index, tracked.num_updates)
                    tracked.mark_snapshot()
                    if is_usual:
                        tracked.schedule.stop()
            trial = self._trial
            trial.shield.call("trial of states", trial.after_update, tracked, is_copied)
            tracked.take_fingerprint()

    def after_skip(self, optimizer: Optimizer) -> None:
        """Look at the state after a GradScaler has not called `optimizer.step()`.

        It does so whenever gradients are not finite, so with a weight that is not finite, or so
        large that every gradient overflows, no hook would ever run again. The scaler has read the
        device already. With several ranks there is no exchange here, and they could not agree.
        """
        if self._is_idle or self._ranks.world > 1:
            return
        tracked = self._tracked[optimizer]
        with self._shield.guarding("skipped step"):
            now = tracked.state.fingerprint()
            memory = tracked.memory_watch.before_update(now)
            tracked.memory_watch.after_update(now)
            tracked.count_nonfinite(tracked.num_updates, is_finite=False)
            found = self._audit_now(tracked)
            if memory is not None:
                found |= zip(MEMORY_FIELDS, memory.tolist(), strict=True)
            findings = StateFindings(**found)
            proof = self._proof(tracked, findings, is_finite=False)
            if proof is None:
                return
            self._decide(proof, findings, tracked)
        by_index = list(self._tracked)
        for index in sorted(self._pending.snapshots) if self._pending is not None else ():
            self.restore_if_due(by_index[index])
            self._discard.undo(by_index[index])

    def close(self) -> None:
        self.is_off = True
        self._snapshots.drop()
        self._discard.forget()
        self._scaler.close()

    def _audit_now(self, tracked: TrackedOptimizer) -> dict[str, float]:
        """Audit the state of a run of one rank that stands still; waits for the device."""
        found = tracked.audit.audit(tracked.state.parts, self._reference(tracked))
        return dict(zip(AUDIT_FIELDS, found.tolist(), strict=True))

    # The parts of a decision, the same on all ranks.

    def _examine(self, tracked: TrackedOptimizer) -> None:
        """Read the exchange that was just made, if the state was audited for it on all ranks."""
        if not tracked.pop_examination():
            return
        is_known = not (self.is_off or self._ranks.has_left or self._monitor.is_joining)
        if not is_known or self._pending is not None:
            return
        with self._shield.guarding("examination"):
            num_leaving, findings, sums = read_exchange(self._ranks)
            proof = self._proof(tracked, findings, is_finite=is_finite_step(sums))
            if proof is not None and not num_leaving and not findings.unable:
                self._decide(proof, findings, tracked)

    def _hear_trial(self, check: StateCheck, findings: StateFindings, loss: float | None) -> None:
        """Let an older state be restored or proposed if it has won a trial."""
        tracked = check.tracked
        if check.update <= tracked.last_restored_update:
            return
        numbers, trial = (tracked, check.update, findings, loss), self._trial
        if self._ranks.world > 1:  # a rank that fails here says so, and nothing is restored
            found = trial.receive(*numbers)
        else:
            found = trial.shield.call("trial of states", trial.receive, *numbers)
        if isinstance(found, Offer) and found.why_asked is None:
            self._take_up(found, Proof.TRIED, tracked)
        elif found is not None:
            tracked.schedule.add(tracked.num_updates + 1)  # snapshots have stood still
            self._report.trial(found)

    def _take_up(self, offer: Offer, proof: Proof, tracked: TrackedOptimizer) -> None:
        """Plan to restore the older state that has won a trial."""
        tracked.requested_at = tracked.num_updates
        lost = tracked.num_updates - offer.snapshot
        report = UndoReport(
            proof=proof,
            tensor=None,
            updates_lost=lost,
            gain=offer.gain,
            reverts_edits=offer.snapshot <= tracked.last_counted_edit,
        )
        self._pending = PendingUndo(
            snapshots={tracked.index: offer.snapshot},
            tensor=None,
            decided_at=self._monitor.sync.num_exchanges,
            report=report,
        )
        self._history.undos.append(PastUndo(proof=proof, update=tracked.num_updates))

    def _reference(self, tracked: TrackedOptimizer) -> Reference | None:
        """Return the last snapshot that finite gradients were computed with, if no code has written
        weights since."""
        step = self._snapshots.newest(tracked.index, tracked.last_finite_update)
        then = None if step is None else tracked.travel_at.get(step)
        if step is None or then is None or step <= max(tracked.edits.last, tracked.last_edit_here):
            return None
        saved = self._snapshots.parameters(tracked.index, step)
        return Reference(saved, tracked.travel.since(then))

    def _proof(
        self, tracked: TrackedOptimizer, findings: StateFindings, *, is_finite: bool
    ) -> Proof | None:
        """Return what is proven and not refused."""
        proof = findings.proof(is_finite=is_finite, world=self._ranks.world)
        is_stuck = proof is None and tracked.num_nonfinite >= self._stuck_steps
        # Where no bound is known, a weight that is too far makes it likely, and nothing certain.
        if is_stuck or (proof is Proof.TOO_FAR and math.isnan(tracked.travel.distance)):
            proof = Proof.STUCK
        if proof is None or self._history.is_refused(proof, tracked.num_updates):
            return None
        return proof

    def _decide(self, proof: Proof, findings: StateFindings, tracked: TrackedOptimizer) -> None:
        """Plan an undo, or refuse it; a refusal is told at once."""
        offer = self._trial.offer
        is_enough = offer is not None and offer.updates_lost >= findings.ordered - 1
        if proof is Proof.ORDERED and offer is not None and is_enough:
            self._take_up(offer, proof, tracked)
            return
        exchange = self._monitor.sync.num_exchanges
        plan = self._planner.plan(proof, findings, tracked, exchange=exchange)
        if isinstance(plan, UndoReport):
            self._refuse(proof, tracked)
            self._report.undo(plan)
            return
        self._pending = plan
        self._history.undos.append(PastUndo(proof=proof, update=tracked.num_updates))

    def _restore(self, tracked: TrackedOptimizer, step: int, pending: PendingUndo) -> None:
        try:
            self._snapshots.restore(tracked.index, step)
            if tracked.index == 0:
                self._monitor.gate.renew_buffers()
            reshard(self._model)
        except Exception as error:
            raise _half_way(f"{type(error).__name__}: {error}") from error
        if not pending.has_begun:
            pending.has_begun = True
            self._report.undo(pending.report_after(tracked.num_updates - tracked.requested_at))
        harmed = pending.tensor
        is_weight = harmed is not None and harmed.key is None
        tracked.mark_restored(harmed if is_weight else None)
        self._trial.shield.call("trial of states", self._trial.forget)
        self._harm = self._no_harm

    def _repair_buffers(self, tracked: TrackedOptimizer, findings: StateFindings) -> None:
        """Replace running statistics that are not finite: training goes on without them, and every
        evaluation would be NaN. Nobody writes those on purpose."""
        is_back = tracked.num_updates - self._buffers_repaired_at < RETURN_STEPS
        step = self._snapshots.newest(tracked.index, tracked.num_updates)
        if not is_back and step is not None and not self._shield.is_down:
            with self._shield.guarding("running statistics"):
                self._snapshots.repair_buffers(step)
                self._monitor.gate.renew_buffers()
        names = list(running_statistics(self._model))
        index = int(findings.broken_buffer) - 1
        is_one = findings.nonfinite_buffers == 1 and 0 <= index < len(names)
        if not is_back:
            self._buffers_repaired_at = tracked.num_updates
            name = names[index] if is_one else None
            self._report.buffers(name, is_repaired=step is not None)

    def _cancel(self, tracked: TrackedOptimizer, why: str) -> None:
        """Give up an undo before anything is restored."""
        self._pending = None
        proof = self._history.undos.pop().proof
        self._refuse(proof, tracked)
        report = UndoReport(proof=proof, tensor=None, updates_lost=None, why_not=why)
        self._report.undo(report)

    def _refuse(self, proof: Proof, tracked: TrackedOptimizer) -> None:
        self._history.refusals[proof] = tracked.num_updates
        self._harm = self._no_harm

    def _give_up(self) -> None:
        self.is_off = True
        self._snapshots.drop()
        self._harm = self._no_harm
        if not self._shield.is_down:
            log.warning("trimtab: recovery is off on all ranks: one could not take snapshots")

    @property
    def _total_updates(self) -> int:
        return sum(one.num_updates for one in self._tracked.values())

    def _has_returned(self, tracked: TrackedOptimizer) -> torch.Tensor | None:
        """Return whether code that wrote weights has brought the harm of the last undo back."""
        age = tracked.num_updates - tracked.last_restored_update
        if tracked.restored_tensor is None or age > RETURN_STEPS:
            return None
        return tracked.restored_tensor.is_harmed_again.float().view(1).to(self._device)

    def _constant(self, values: tuple[float, ...]) -> torch.Tensor:
        if values not in self._constants:
            self._constants[values] = torch.tensor(values, device=self._device)
        return self._constants[values]


def _half_way(what: str) -> RestoreError:
    return RestoreError(
        f"an undo failed half-way ({what}), so weights and optimizer may be of different steps: "
        "restart from the last checkpoint"
    )
