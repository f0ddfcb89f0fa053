"""Undo: puts a harmed state back to a snapshot, inside `optimizer.step()`.

    pre-hook    bits are summed again (`MemoryWatch`); what all ranks found `lag` exchanges ago
                arrives, and if it is proof of harm, the snapshot is restored and the gradients at
                hand are dropped: no step is taken
    post-hook   every `snapshot_every` updates the state is audited (`StateAudit`) and copied
                (`Snapshots`); bits are summed (`MemoryWatch`)

Between finding and restoring, the gate discards the updates: a harmed state is not trained. The
loop, its data, its schedules and its random numbers go on: some updates are lost, nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core.config import RecoverConfig
from trimtab.core.errors import RestoreError, RunStopped
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.protect.discard import Discard
from trimtab.live.ranks.exchange import RankSync
from trimtab.live.recover.audit import StateAudit
from trimtab.live.recover.experiments import Experiments
from trimtab.live.recover.memory_watch import MemoryWatch, state_tensors
from trimtab.live.recover.rules import (
    FIELDS,
    STUCK_STEPS,
    Edits,
    Found,
    Proof,
    Undone,
    why_not,
)
from trimtab.live.shield import Shield, log
from trimtab.state.host_copy import local, version_of
from trimtab.state.snapshots import Snapshots, reshard

MAX_WAIT = 32
"""Updates that one optimizer waits for another to be restored with it. Chosen: a GAN steps one of
its two at most some ten times as often as the other."""

NO_SNAPSHOT = "there is no snapshot of these parameters from before it"
EDITED = "your code has written weights since the last snapshot, which would be lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one exchange was about."""

    which: int
    """The place of the optimizer."""
    update: int
    """How many updates that optimizer has made before it."""
    audited: int | None
    """The snapshot whose state was audited; None if none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """What is journalled and logged about an undo, or about harm that is not undone."""

    proof: Proof
    tensor: str | None
    updates_lost: int | None
    """None if nothing was undone."""
    updates_discarded: int = 0
    """Updates since the restored state that were not applied, so that nothing of them is lost."""
    why_not: str | None = None


class Undo:
    """Watches over the trained state of a run, and restores it."""

    def __init__(
        self,
        model: nn.Module,
        monitor: StepMonitor,
        snapshots: Snapshots,
        config: RecoverConfig,
        shield: Shield,
        *,
        report: Callable[[UndoReport], None],
        polls: Sequence[Callable[[], None]],
        experiments: Experiments | None,
        scaler: Any,
    ) -> None:
        optimizers, device = monitor.optimizers, monitor.meter.device
        self._model = model
        self._monitor = monitor
        self._optimizers = list(optimizers)
        self._snapshots = snapshots
        self._every = config.snapshot_every
        self._device = device
        self._shield = shield
        self._report = report
        self._experiments = experiments
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._watches = [MemoryWatch(optimizer, device) for optimizer in optimizers]
        self._audits = [StateAudit(optimizer, device) for optimizer in optimizers]
        self._num_updates = [0] * len(self._optimizers)
        self._stepped_at = [0] * len(self._optimizers)
        """Updates that all of them had made together when each was stepped last."""
        self._audited: list[tuple[int, torch.Tensor] | None] = [None] * len(self._optimizers)
        """The snapshot that was audited last and what was found, until it is sent."""
        self._last_finite = [-1] * len(self._optimizers)
        """Updates that each had made before its last one with finite gradients; -1 without one."""
        self._num_nonfinite = [0] * len(self._optimizers)
        """Updates in a row whose gradients were not finite, as all ranks know it."""
        self._audit_at = [-1] * len(self._optimizers)
        """Updates after which the state is audited besides, because something is odd."""
        self.num_fields = len(FIELDS)
        self.unable = torch.tensor([float(name == "unable") for name in FIELDS], device=device)
        """What is sent where the watch itself has failed."""
        self.harm = torch.zeros(1, device=device)
        """1 from when this rank found harm until it is dealt with: the gate discards meanwhile."""
        self._constants: dict[tuple[float, ...], torch.Tensor] = {}
        self._nothing = torch.zeros(3, device=device)
        self._order = 0
        self._polls = polls
        """Are called in every update; each has a shield of its own."""
        self._relaunch_reason = ""
        self._must_end = False
        self._targets: dict[int, int] = {}
        """Optimizers whose state is to be restored at their next update, and the snapshot."""
        self._asked_at = [0] * len(self._optimizers)
        """Updates that each had made when those targets were chosen."""
        self._restored = [-1] * len(self._optimizers)
        """The last update of each optimizer that was not made because its state was restored."""
        self._undone: list[Undone] = []
        self._accepted: set[Proof] = set()
        self._has_told_of_writes = False
        self._discard = Discard()
        self.is_off = False
        """Whether all ranks have agreed that there are no snapshots."""
        self._scaler = None if scaler is None else ScalerWatch(scaler, self)
        self._marks: list[list[tuple[int, int]]] = [[] for _ in self._optimizers]
        """Version and address of each parameter after the last update."""
        self._edits = [Edits() for _ in self._optimizers]
        """When code has written parameters of each optimizer, as all ranks know it."""
        self._take_at = [-1] * len(self._optimizers)
        """Updates after which a snapshot is taken besides, because code has made an edit."""

    def request(self, updates: int) -> None:
        """Undo at least so many updates as soon as all ranks know; the first rank's call counts."""
        if self._ranks.group.rank == 0:
            self._order = updates + 1

    def remember(self, batch: Any) -> None:
        """Keep a copy of a batch of this step, for experiments."""
        if self._experiments is not None:
            self._experiments.remember(batch)

    def relaunch(self, reason: str) -> None:
        """End the run on all ranks, to be started again from a checkpoint; on the first rank."""
        self._relaunch_reason = reason

    @property
    def _ranks(self) -> RankSync:
        return self._monitor.sync.ranks

    def num_updates(self, optimizer: Optimizer) -> int | None:
        """Return how often an optimizer has been stepped; None if it is not watched."""
        if optimizer not in self._optimizers:
            return None
        return self._num_updates[self._optimizers.index(optimizer)]

    # In every update, on all ranks.

    def to_send(self, optimizer: Optimizer) -> tuple[Sent, torch.Tensor]:
        """Return what this rank found in an optimizer's state since its last update."""
        which = self._optimizers.index(optimizer)
        flips, audit, audited, is_edited = self._nothing, self._nothing, None, False
        if not (self.is_off or self._shield.is_down):
            with self._shield.guarding("watching memory"):
                flips = self._watches[which].before_update()
                is_edited = bool(self._marks[which]) and self._marks[which] != _marks(optimizer)
                if (done := self._audited[which]) is not None:
                    audited, audit = done
                    self._audited[which] = None
                proven = torch.stack((flips[0], audit[0], audit[1])) * self._counted()
                self.harm = torch.maximum(self.harm, proven.sum().clamp(max=1.0))
        order, self._order = self._order, 0
        facts = (
            *(float(audited is not None), float(is_edited)),
            *(float(order), float(bool(self._relaunch_reason)), float(self._shield.is_down)),
        )
        sent = Sent(which=which, update=self._num_updates[which], audited=audited)
        return sent, torch.cat((flips, audit, self._constant(facts), self.harm))

    def receive(self, sent: Sent, values: Sequence[float], *, is_finite: bool) -> None:
        """Take what all ranks found in an exchange, and decide; the same on every rank.

        Gradients that are not finite may come from a weight that is not: it is looked at now.
        """
        found = Found(**dict(zip(FIELDS, values, strict=True)))
        self._must_end = self._must_end or found.relaunch > 0
        if self.is_off:
            return
        if sent.update > self._restored[sent.which]:
            self._count_nonfinite(sent, is_finite=is_finite)
        if not is_finite:
            self._audit_at[sent.which] = self._num_updates[sent.which] + 1
        if found.unable:
            self._give_up()
            return
        if found.is_sound and found.audited == self._ranks.world and sent.audited is not None:
            self._snapshots.mark_clean(sent.which, sent.audited)
        if found.written or found.edited:
            self._note_edit(sent)
        if found.written and not self._has_told_of_writes:
            self._has_told_of_writes = True
            log.info("trimtab: weights are written past autograd (`.data`, NumPy): not judged")
        proof = self._proof(found, sent.which)
        if proof is None or self._targets:
            return
        if sent.update > self._restored[sent.which]:  # else it is about what has been undone
            self._decide(proof, found, sent)

    def _count_nonfinite(self, sent: Sent, *, is_finite: bool) -> None:
        """Count the updates in a row without a finite gradient."""
        which = sent.which
        self._num_nonfinite[which] = 0 if is_finite else self._num_nonfinite[which] + 1
        if is_finite:
            self._last_finite[which] = sent.update

    def _proof(self, found: Found, which: int) -> Proof | None:
        """Return what is proven and not accepted."""
        proof = found.proof
        if proof is None and self._num_nonfinite[which] >= STUCK_STEPS:
            proof = Proof.STUCK
        return None if proof in self._accepted else proof

    def _note_edit(self, sent: Sent) -> None:
        """Remember that code has written weights; take a snapshot soon, unless it does so often."""
        which = sent.which
        self._edits[which] = self._edits[which].add(sent.update)
        if not self._edits[which].is_habit:
            self._take_at[which] = self._num_updates[which] + 1

    def restores(self, optimizer: Optimizer) -> bool:
        """Restore an optimizer's state if that is due; then its step is not to be taken."""
        if self._must_end:
            self._end()
        for poll in self._polls:
            poll()
        which = self._optimizers.index(optimizer)
        if self._targets and self._num_updates[which] - self._asked_at[which] > MAX_WAIT:
            # The others do not step any more: their training may be over.
            self._targets = {at: step for at, step in self._targets.items() if at == which}
        if which not in self._targets:
            return False
        self._discard.via_missing_grads(optimizer)
        if which > 0 and 0 in self._targets:
            return True  # all begin in the same step: gradients of a mixed state are of no use
        if which == 0 and any(self._snapshots.newest(*at) != at[1] for at in self._targets.items()):
            # Code has added or replaced parameters since it was decided; nothing is written yet.
            self._cancel()
            return False
        target = self._targets.pop(which)
        try:
            self._snapshots.restore(which, target)
            if which == 0 and self._monitor.gate is not None:
                self._monitor.gate.buffers.renew()
            reshard(self._model)
        except Exception as error:
            raise RestoreError(
                f"an undo failed half-way ({type(error).__name__}: {error}), so weights and "
                "optimizer may be of different steps: restart from the last checkpoint"
            ) from error
        self._restored[which] = self._num_updates[which]
        self._num_nonfinite[which] = 0
        self._watches[which].forget()
        self._audited[which] = None
        self.harm = torch.zeros_like(self.harm)
        return True

    def after_update(self, optimizer: Optimizer) -> None:
        """Audit and copy the state if that is due, and sum its bits."""
        which = self._optimizers.index(optimizer)
        self._discard.undo(optimizer)
        self._num_updates[which] += 1
        self._stepped_at[which] = sum(self._num_updates)
        if self.is_off or self._shield.is_down:
            return
        with self._shield.guarding("snapshot"):
            done = self._num_updates[which]
            is_due = done == 1 or done % self._every == 0 or done == self._take_at[which]
            if is_due or done == self._audit_at[which]:
                self._audited[which] = (done, self._audits[which].audit())
            # A snapshot would overwrite the one that is to be restored, or may have to be.
            if is_due and not self._targets and not self._num_nonfinite[which]:
                self._snapshots.take(which, done)
            self._watches[which].after_update()
            self._marks[which] = _marks(optimizer)

    def after_skip(self, optimizer: Optimizer) -> None:
        """Look at the state after a GradScaler has not called `optimizer.step()`.

        It does so whenever gradients are not finite, so with a weight that is not finite, or so
        large that every gradient overflows, no hook would ever run again. The scaler has read the
        device already. With several ranks there is no exchange here, and they could not agree.
        """
        if self.is_off or self._shield.is_down or self._ranks.world > 1:
            return
        which = self._optimizers.index(optimizer)
        with self._shield.guarding("skipped step"):
            watch = self._watches[which]
            flipped, _, flipped_place = watch.before_update().tolist()
            watch.after_update()
            nonfinite, _, broken_place = self._audits[which].audit().tolist()
            found = Found(
                flipped=flipped,
                flipped_place=flipped_place,
                nonfinite=nonfinite,
                broken_place=broken_place,
            )
            sent = Sent(which=which, update=self._num_updates[which], audited=None)
            self._count_nonfinite(sent, is_finite=False)
            proof = self._proof(found, which)
            if proof is None:
                return
            self._decide(proof, found, sent)
        for restored in sorted(self._targets):
            self.restores(self._optimizers[restored])
            self._discard.undo(self._optimizers[restored])

    def close(self) -> None:
        """Give the memory back."""
        self.is_off = True
        self._snapshots.drop()
        self._discard.forget()
        if self._scaler is not None:
            self._scaler.close()

    def _end(self) -> None:
        """End the run; every rank comes here at the same update."""
        reason = self._relaunch_reason or "the first rank has ended the run"
        recorder = self._monitor.recorder
        if recorder is not None:
            with self._shield.guarding("exit request"):
                step = self._monitor.next_step
                request = ExitRequest(code=RunExit.RELAUNCH, reason=reason, step=step)
                request.write(recorder.run)
        raise RunStopped(reason, RunExit.RELAUNCH)

    def _find_targets(self, latest: Sequence[int]) -> dict[int, int] | None:
        """Return the newest clean snapshot of each optimizer in use, up to an update of each."""
        now = sum(self._num_updates)
        found = {}
        for which in range(len(self._optimizers)):
            if now - self._stepped_at[which] > MAX_WAIT * len(self._optimizers):
                continue  # its training is over
            target = self._snapshots.newest(which, latest[which])
            if target is None:
                return None
            found[which] = target
        return found

    def _cancel(self) -> None:
        """Give up an undo before anything is restored."""
        self._targets.clear()
        proof = self._undone.pop().proof
        self._accepted.add(proof)
        self.harm = torch.zeros_like(self.harm)
        self._report(UndoReport(proof=proof, tensor=None, updates_lost=None, why_not=NO_SNAPSHOT))

    def _decide(self, proof: Proof, found: Found, sent: Sent) -> None:
        """Choose the snapshots to restore, or accept the harm; tell the user which."""
        problem = why_not(proof, sent.update, self._undone)
        applied, age = self._num_updates, max(int(found.ordered) - 1, 0)
        latest = [done - age for done in applied]
        if proof is Proof.STUCK:
            # The state that the last finite gradients were computed with is sound; the updates
            # after that one were discarded.
            applied, latest = [last + 1 for last in self._last_finite], self._last_finite
        targets = self._find_targets(latest) or {}
        # A run that is not finite is lost otherwise; a person who asks for an undo knows.
        must_keep_edits = proof not in (Proof.NONFINITE, Proof.ORDERED)
        loses_edits = any(
            at <= self._edits[which].last and not self._edits[which].is_habit
            for which, at in targets.items()
        )
        lost = None
        if problem is None and not targets:
            problem = NO_SNAPSHOT
        elif problem is None and loses_edits and must_keep_edits:
            problem = EDITED
        if problem is None:
            self._targets, self._asked_at = targets, list(self._num_updates)
            self._undone.append(Undone(proof=proof, update=sent.update))
            lost = max(applied[which] - at for which, at in targets.items())
        else:
            if problem != EDITED or proof is not Proof.FLIPPED:  # else the next one may be undone
                self._accepted.add(proof)
            self.harm = torch.zeros_like(self.harm)
        self._report(
            UndoReport(
                proof=proof,
                tensor=self._name(sent.which, found.place),
                updates_lost=lost,
                updates_discarded=self._num_updates[sent.which] - applied[sent.which],
                why_not=problem,
            )
        )

    def _name(self, which: int, place: int | None) -> str | None:
        parts = state_tensors(self._optimizers[which])
        if place is None or not 0 <= place < len(parts):
            return None
        return parts[place].name(self._names)

    def _give_up(self) -> None:
        self.is_off = True
        self._snapshots.drop()
        self.harm = torch.zeros_like(self.harm)
        if not self._shield.is_down:
            log.warning("trimtab: a rank has no snapshots, so nothing can be undone on any")

    def _counted(self) -> torch.Tensor:
        """Return which findings stop training: not those that were accepted."""
        rules = (Proof.FLIPPED, Proof.NONFINITE, Proof.IMPOSSIBLE)
        return self._constant(tuple(float(rule not in self._accepted) for rule in rules))

    def _constant(self, values: tuple[float, ...]) -> torch.Tensor:
        if values not in self._constants:
            self._constants[values] = torch.tensor(values, device=self._device)
        return self._constants[values]


def _marks(optimizer: Optimizer) -> list[tuple[int, int]]:
    """Return version and address of each parameter, without reading any."""
    parts = (local(p) for group in optimizer.param_groups for p in group["params"])
    return [(version_of(part), part.data_ptr()) for part in parts]


class ScalerWatch:
    """Tells `Undo` of the steps that a GradScaler skips: then no hook of the optimizer runs."""

    def __init__(self, scaler: Any, undo: Undo) -> None:
        self._scaler = scaler
        self._undo = undo
        self._step = scaler.step
        scaler.step = self.step

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step as the scaler does."""
        inner = getattr(optimizer, "optimizer", optimizer)  # such as Accelerate's wrapper
        before = self._undo.num_updates(inner)
        result = self._step(optimizer, *args, **kwargs)
        if before is not None and self._undo.num_updates(inner) == before:
            self._undo.after_skip(inner)
        return result

    def close(self) -> None:
        """Give the scaler its own method back, if nobody has wrapped it again."""
        if vars(self._scaler).get("step") == self.step:
            del self._scaler.step
