"""StateTrial: lets an older state and the present one compute the loss of the same new batches.

    exchange    a rank says whether it has a batch and a copy of its weights, and its last gap
    pre-hook    if all ranks are ready: the present loss, the old weights, their loss, the present
                weights back, bit for bit; no other trace (`without_trace`)
    arrivals    the gaps of all ranks, `lag` updates later: the rule decides (`trial_rule`)

What is decided depends on reduced numbers alone, so on all ranks alike, also where one of them has
failed. The losses are not read on the host: they travel with the numbers of the next update.
"""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.recover.experiments import BatchLoss, Experiments
from trimtab.live.recover.rules import StateFindings, read_exchange
from trimtab.live.recover.traces import without_trace
from trimtab.live.recover.tracked_optimizer import LONGEST_INTERVAL, TrackedOptimizer
from trimtab.live.recover.trial_rule import (
    MAX_AGE,
    MIN_AGE,
    NUM_WINDOWS,
    WINDOW,
    LossLevel,
    Outcome,
    Settings,
    TrialSchedule,
    judge,
    rates_of,
    what_changed,
)
from trimtab.live.shield import Shield, log
from trimtab.state.batches import copy_batch
from trimtab.state.rng import get_random_state, set_random_state
from trimtab.state.snapshots import NUM_SLOTS, Snapshots, reshard

NUM_BATCHES = WINDOW * NUM_WINDOWS

ANSWER_UPDATES = 100
"""Updates in which `guard.undo()` restores the state that was proposed. Chosen: its snapshot takes
one of four places meanwhile, and what it would lose grows."""

AUTO_INTERVAL = 16
"""Updates between two snapshots at most where a state is restored unasked. Source: with one each 10
updates no change was undone that people make on purpose; `trial_rule.MAX_AGE` allows no more."""

MOST_STEPS, MOST_SECONDS = 4.0, 1.0
"""Steps of training, and seconds, that both losses of a batch may take. Source: two forward passes
take less than a step; a first one that is compiled does not count."""

BIG = 1e9
"""The gap to a present loss that is not finite."""


@dataclass(slots=True)
class OpenTrial:
    """A trial that is under way, as all ranks know it."""

    snapshot: int
    """The first update that the older state does not contain; -1 if there is no such state."""
    since: int
    """The first update whose batch is scored."""
    gaps: list[float] = field(default_factory=list)
    old_losses: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    """The losses that were trained on, of the same batches."""
    last_loss: float = math.nan
    """That of the last update."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An older state that is better, to be restored now or when a person says so."""

    snapshot: int
    gain: float
    """By how much its loss was lower, on the batches of the last window."""
    updates_lost: int
    why_asked: str | None
    """Why it is not restored unasked; None if it is."""
    until: int
    """The last update at which it may be accepted."""


@dataclass(slots=True)
class _Candidates:
    """Both states and the batches of an update, on this rank."""

    live: list[torch.Tensor]
    present: list[torch.Tensor]
    old: list[torch.Tensor]
    batches: list[Any]


class StateTrial:
    """Tries an older state of a run with one optimizer."""

    def __init__(
        self,
        model: nn.Module,
        monitor: StepMonitor,
        snapshots: Snapshots,
        experiments: Experiments | None,
        shield: Shield,
        *,
        rollback: str,
        batch_loss: BatchLoss | None,
        lag: int,
    ) -> None:
        """Without `batch_loss` on all ranks, no state is tried."""
        self._model = model
        self._monitor = monitor
        self._snapshots = snapshots
        self._experiments = experiments
        self._batch_loss = batch_loss
        self._shield = shield
        self._asks = rollback != "auto"
        self.is_off = rollback == "off" or len(monitor.optimizers) > 1
        """Whether all ranks know that no state is tried any more."""
        least = -(-(MIN_AGE + lag + 1) // (NUM_SLOTS - 1))  # so that the oldest is old enough
        longest = LONGEST_INTERVAL if self._asks else AUTO_INTERVAL
        is_used = batch_loss is not None and not self.is_off
        self.intervals = (least, longest) if is_used else (0, LONGEST_INTERVAL)
        """Updates between two snapshots, at least and at most."""
        self._level = LossLevel()
        self._schedule = TrialSchedule()
        self._open: OpenTrial | None = None
        self._offer: Offer | None = None
        self._settings: dict[int, Settings] = {}
        """The options of the optimizer at each snapshot."""
        self._rates: deque[tuple[float, ...]] = deque(maxlen=512)
        """The learning rates of the last updates."""
        self._candidates: _Candidates | None = None
        self._scores: torch.Tensor | None = None
        """One rank, its gap and its old loss, until they are sent."""
        self._constants: dict[tuple[bool, ...], torch.Tensor] = {}
        self._num_slow = 0
        self.why_asked = ""
        """What may have been done on purpose since the snapshot, as this rank sees it."""

    @property
    def is_open(self) -> bool:
        """Whether a trial is under way: snapshots stand still."""
        return self._open is not None

    def note_snapshot(self, tracked: TrackedOptimizer) -> None:
        """Remember the settings of a state that was copied."""
        if not self.is_off:
            groups = tracked.optimizer.param_groups
            self._settings[tracked.num_updates] = Settings.from_groups(groups)
            for step in sorted(self._settings)[: -2 * NUM_SLOTS]:
                del self._settings[step]

    def after_update(self, tracked: TrackedOptimizer) -> None:
        """Remember the learning rates of an update."""
        if not self.is_off:
            self._rates.append(rates_of(tracked.optimizer.param_groups))

    # What this rank sends, and computes where all ranks are ready.

    def to_send(self, tracked: TrackedOptimizer) -> tuple[torch.Tensor, ...]:
        """Return what goes with the exchange of an update, if there is something to say."""
        if self.is_off:
            return ()
        scores, self._scores = self._scores, None
        has_failed = self._shield.is_down or self._batch_loss is None
        if self._open is None and scores is None and not has_failed:
            return ()
        is_ready = is_cautious = False
        if self._open is not None and not has_failed:
            with self._shield.guarding("trial of states"):
                self._candidates = self._find_candidates(tracked, self._open)
                is_ready = self._candidates is not None
                is_cautious = self._may_be_on_purpose(tracked, self._open.snapshot)
        zeros = self._constant(False, False, False)
        return (
            self._constant(is_ready, is_cautious, self._shield.is_down or has_failed),
            zeros if scores is None else scores,
        )

    def poll(self) -> None:
        """Compute both losses of the batches at hand if all ranks are about to."""
        experiments, found = self._experiments, self._candidates
        self._candidates = None
        if found is not None:
            ranks = self._monitor.sync.ranks
            if ranks.world > 1:
                num_leaving, findings, _ = read_exchange(ranks)
                if num_leaving or findings.trial_ready != ranks.world:
                    found = None
        if found is not None:
            # Also if this rank has failed since: the others wait for it in the forward pass.
            with self._shield.guarding("trial of states"):
                self._scores = self._score(found)
        if experiments is not None:
            experiments.batches.end_step()

    def _find_candidates(self, tracked: TrackedOptimizer, trial: OpenTrial) -> _Candidates | None:
        """Copy the present state beside the older one; None if one or the batch is missing."""
        if self._experiments is None or not (batches := self._experiments.batches.of_step):
            return None
        if self._snapshots.newest(tracked.index, trial.snapshot) != trial.snapshot:
            return None
        pairs = self._snapshots.forward_state(tracked.index, trial.snapshot)
        live = [tensor for tensor, _ in pairs]
        present = [tensor.clone() for tensor in live]
        return _Candidates(live, present, [saved for _, saved in pairs], batches)

    def _may_be_on_purpose(self, tracked: TrackedOptimizer, snapshot: int) -> bool:
        groups, then = tracked.optimizer.param_groups, self._settings.get(snapshot)
        since = list(self._rates)[-(tracked.num_updates - snapshot) :]
        what = "the settings of the snapshot are not known"
        if then is not None:
            since.append(rates_of(groups))
            what = what_changed(then, Settings.from_groups(groups), since) or ""
        self.why_asked = what
        return bool(what)

    @torch.no_grad()
    def _score(self, found: _Candidates) -> torch.Tensor | None:
        """Return one rank, the gap and the old loss, on the device; leaves no trace."""
        began = time.perf_counter()
        with without_trace(self._model) as moved:
            random = get_random_state()
            present = self._loss(found.batches)
            set_random_state(random)
            reshard(self._model)
            try:
                for live, value in zip(found.live, found.old, strict=True):
                    live.copy_(value, non_blocking=True)
                torch.clear_autocast_cache()  # it holds weights in half precision
                old = self._loss(found.batches)
            finally:
                try:
                    reshard(self._model)
                finally:  # nothing of ours is called in here: the present weights must come back
                    for live, value in zip(found.live, found.present, strict=True):
                        live.copy_(value)
                    torch.clear_autocast_cache()
        if moved:
            raise RuntimeError(f"batch_loss changes {moved[0]}")
        self._refuse_if_slow(time.perf_counter() - began)
        gap = (present - old).nan_to_num(nan=BIG, posinf=BIG, neginf=-BIG)
        return torch.stack((torch.ones_like(gap), torch.where(old.isfinite(), gap, -BIG), old))

    def _loss(self, batches: list[Any]) -> torch.Tensor:
        if self._batch_loss is None:
            raise RuntimeError("there is no batch_loss")
        losses = [self._batch_loss(copy_batch(b)).detach().float().mean() for b in batches]
        return torch.stack(losses).mean().to(self._monitor.meter.device)

    def _refuse_if_slow(self, seconds: float) -> None:
        is_slow = seconds > max(MOST_SECONDS, MOST_STEPS * self._monitor.clock.seconds)
        self._num_slow = self._num_slow + 1 if is_slow else 0
        if self._num_slow > 1:
            raise RuntimeError(f"batch_loss took {seconds / 2:.1f} s, far longer than a step")

    def _constant(self, *flags: bool) -> torch.Tensor:
        if flags not in self._constants:
            values = torch.tensor(tuple(map(float, flags)), device=self._monitor.meter.device)
            self._constants[flags] = values
        return self._constants[flags]

    # What all ranks decide alike.

    def receive_alone(self, *found: Any) -> Offer | Outcome | None:
        """Do the same in a run of one rank, where an error takes nothing but trials out."""
        if self._shield.is_down:
            return None
        return self._shield.call("trial of states", self.receive, *found)

    def receive(
        self, tracked: TrackedOptimizer, update: int, findings: StateFindings, loss: float | None
    ) -> Offer | Outcome | None:
        """Take the loss and the scores of an update; return how a trial has ended with it."""
        if self.is_off:
            return None
        if findings.trial_failed or findings.cramped:
            if findings.cramped and self._monitor.recorder.is_recording:
                log.info("trimtab: no states are tried: there is no memory for four snapshots")
            self.forget()
            self.is_off = True
            return None
        if self._offer is not None and update > self._offer.until:
            self._drop_offer()
        trial = self._open
        if trial is not None:
            found = self._hear(trial, tracked, update, findings)
            trial.last_loss = math.nan if loss is None else loss
            return found
        if loss is not None:
            sigmas = self._level.sigmas_above(loss)
            if self._offer is None and self._schedule.opens(update, sigmas):
                snapshot = self._snapshots.newest(tracked.index, update - MIN_AGE)
                at = -1 if snapshot is None else snapshot
                self._open = OpenTrial(at, since=tracked.num_updates + 1)
            else:
                self._level.learn(loss)
        return None

    def _hear(
        self, trial: OpenTrial, tracked: TrackedOptimizer, update: int, findings: StateFindings
    ) -> Offer | Outcome | None:
        world = self._monitor.sync.ranks.world
        outcome = None
        if update < trial.since:
            return None
        if findings.trial_scored == world:
            trial.gaps.append(findings.trial_gap / world)
            trial.old_losses.append(findings.trial_old / world)
            known = math.isfinite(trial.last_loss)
            present = trial.gaps[-1] + trial.old_losses[-1]
            trial.recorded.append(trial.last_loss if known else present)
            outcome = judge(trial.gaps, trial.old_losses, trial.recorded)
        if outcome is None and findings.trial_ready != world:
            outcome = Outcome.GONE
        if outcome is None:
            return None
        self._open = None
        self._schedule.end(update, has_led_to_something=outcome is Outcome.OLD)
        if outcome is not Outcome.OLD:
            return outcome
        gain = sum(trial.gaps[-WINDOW:]) / WINDOW
        lost = tracked.num_updates - trial.snapshot
        why = self._why_ask(trial, tracked, findings)
        offer = Offer(trial.snapshot, gain, lost, why, until=update + ANSWER_UPDATES)
        if why is not None:
            self._offer, self._snapshots.kept_step = offer, offer.snapshot
        return offer

    def _why_ask(
        self, trial: OpenTrial, tracked: TrackedOptimizer, findings: StateFindings
    ) -> str | None:
        """Return why the older state is not restored unasked; None if it is."""
        if tracked.edits.would_be_lost(trial.snapshot):
            return "your code has written weights or state since"
        if findings.trial_cautious:
            return self.why_asked or "a rank has seen a change of settings"
        if trial.since - trial.snapshot > MAX_AGE + WINDOW:
            return "the last snapshot from before is old"
        return 'recover.rollback is "ask"' if self._asks else None

    def accept(self, tracked: TrackedOptimizer, updates: int) -> Offer | None:
        """Return the standing offer if a person asks to undo at least so many updates."""
        offer = self._offer
        if offer is None or tracked.num_updates - offer.snapshot < updates:
            return None
        return offer

    def forget(self) -> None:
        """The state was restored, or no state is tried any more."""
        self._open = self._candidates = self._scores = None
        self._drop_offer()

    def _drop_offer(self) -> None:
        self._offer = self._snapshots.kept_step = None
