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
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.recover.experiments import BatchLoss, Experiments
from trimtab.live.recover.rules import StateFindings, read_exchange
from trimtab.live.recover.traces import without_trace
from trimtab.live.recover.tracked_optimizer import LONGEST_INTERVAL, TrackedOptimizer
from trimtab.live.recover.trial_rule import (
    MAX_AGE,
    MIN_AGE,
    WINDOW,
    LossLevel,
    Outcome,
    TrialSchedule,
    judge,
    rates_of,
    settings_of,
    what_changed,
)
from trimtab.live.shield import Shield, log
from trimtab.state.batches import copy_batch
from trimtab.state.rng import get_random_state, set_random_state
from trimtab.state.snapshots import NUM_SLOTS, Snapshots, reshard

ANSWER_UPDATES = 100
"""Updates in which `guard.undo()` restores what was proposed, whose snapshot is kept. Chosen."""

AUTO_INTERVAL = 16
"""Updates between two snapshots at most where a state is restored unasked, so that one is younger
than `trial_rule.MAX_AGE`. Chosen: half of that."""

MOST_STEPS, MOST_SECONDS = 4.0, 1.0
"""Steps of training, and seconds, that two losses may take. Chosen: they take less than a step; the
first, which may be compiled, does not count."""

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


class Offer(NamedTuple):
    """An older state that is better, to be restored now or when a person says so."""

    snapshot: int
    gain: float
    """By how much its loss was lower, on the batches of the last window."""
    updates_lost: int
    why_asked: str | None
    """Why it is not restored unasked; None if it is."""
    until: int
    """The last update at which it may be accepted."""


class _Candidates(NamedTuple):
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
        self._model, self._monitor, self._snapshots = model, monitor, snapshots
        self._experiments, self._batch_loss = experiments, batch_loss
        self.shield = shield
        self._asks = rollback != "auto"
        self.is_off = rollback == "off" or len(monitor.optimizers) > 1
        """Whether all ranks know that no state is tried any more."""
        self.intervals = (0, LONGEST_INTERVAL)
        """Updates between two snapshots, at least and at most."""
        if batch_loss is not None and not self.is_off:
            least = -(-(MIN_AGE + lag + 1) // (NUM_SLOTS - 1))  # the oldest must be old enough
            self.intervals = (least, LONGEST_INTERVAL if self._asks else AUTO_INTERVAL)
        self._level, self._schedule = LossLevel(), TrialSchedule()
        self.open_trial: OpenTrial | None = None
        """The trial that is under way: snapshots stand still."""
        self.offer: Offer | None = None
        """What was proposed and may be accepted."""
        self._settings: dict[int, list[dict[str, Any]]] = {}
        """The options of the optimizer at each snapshot."""
        self._rates: deque[tuple[float, ...]] = deque(maxlen=512)
        """The learning rates of the last updates."""
        self._candidates: _Candidates | None = None
        self._scores: torch.Tensor | None = None
        """One rank, its gap and its old loss, until they are sent."""
        self._num_slow = 0
        self.announced_at = -1
        """Updates made when code announced a change last."""
        self._what_changed = ""
        """What may have been done on purpose since the snapshot, as this rank sees it."""

    def after_update(self, tracked: TrackedOptimizer, is_copied: bool) -> None:
        """Remember the settings of an update, and of a state that was copied."""
        if self.is_off:
            return
        groups = tracked.optimizer.param_groups
        self._rates.append(rates_of(groups))
        if is_copied:
            self._settings[tracked.num_updates] = settings_of(groups)
            for step in sorted(self._settings)[: -2 * NUM_SLOTS]:
                del self._settings[step]

    # What this rank sends, and computes where all ranks are ready.

    def to_send(
        self, tracked: TrackedOptimizer
    ) -> tuple[tuple[bool, bool, bool], torch.Tensor | None]:
        """Return whether this rank is ready, saw settings change, and has failed; and scores."""
        scores, self._scores = self._scores, None
        if self.is_off:
            return (False,) * 3, None
        is_changed, trial = False, self.open_trial
        if trial is not None and not self.shield.is_down and self._batch_loss is not None:
            with self.shield.guarding("trial of states"):
                is_changed = self._is_changed(tracked, trial.snapshot)
                self._candidates = self._find_candidates(tracked, trial.snapshot)
        has_failed = self.shield.is_down or self._batch_loss is None
        return (self._candidates is not None, is_changed, has_failed), scores

    def poll(self) -> None:
        """Compute both losses of the batches at hand if all ranks are about to."""
        found, self._candidates = self._candidates, None
        ranks = self._monitor.sync.ranks
        # Also if this rank has failed since: the others wait for it in the forward pass.
        with self.shield.guarding("trial of states"):
            if found is not None and ranks.world > 1:
                num_leaving, findings, _ = read_exchange(ranks)
                if num_leaving or findings.trial_ready != ranks.world:
                    found = None
            if found is not None:
                self._scores = self._score(found)
            if self._experiments is not None:
                self._experiments.batches.end_step()

    def _find_candidates(self, tracked: TrackedOptimizer, snapshot: int) -> _Candidates | None:
        """Copy the present state beside the older one; None if one or the batch is missing."""
        batches = [] if self._experiments is None else self._experiments.batches.of_step
        if not batches or self._snapshots.newest(tracked.index, snapshot) != snapshot:
            return None
        pairs = self._snapshots.forward_state(tracked.index, snapshot)
        live, old = [tensor for tensor, _ in pairs], [saved for _, saved in pairs]
        return _Candidates(live, [tensor.clone() for tensor in live], old, batches)

    def _is_changed(self, tracked: TrackedOptimizer, snapshot: int) -> bool:
        groups, then = tracked.optimizer.param_groups, self._settings.get(snapshot)
        self._what_changed = "the settings of the snapshot are not known"
        if self.announced_at >= snapshot:
            self._what_changed = "your code has announced a change"
        elif then is not None:
            since = list(self._rates)[-(tracked.num_updates - snapshot) :]
            # What a change does to the loss may show only after the next snapshot.
            earlier = [found for step, found in self._settings.items() if step < snapshot]
            self._what_changed = what_changed(then, settings_of(groups), since, earlier)
        return bool(self._what_changed)

    @torch.no_grad()
    def _score(self, found: _Candidates) -> torch.Tensor:
        """Return one rank, the gap and the old loss, on the device; leaves no trace."""
        began = time.perf_counter()
        with without_trace(self._model) as moved:
            for module in self._model.modules():
                if isinstance(module, DistributedDataParallel):
                    # Else it sends buffers: where one rank fails, the others must not wait for it.
                    module.require_forward_param_sync = False
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
        seconds = time.perf_counter() - began
        is_slow = seconds > max(MOST_SECONDS, MOST_STEPS * self._monitor.clock.seconds)
        self._num_slow = self._num_slow + 1 if is_slow else 0
        if self._num_slow > 1:
            raise RuntimeError(f"batch_loss took {seconds / 2:.1f} s, far longer than a step")
        gap = (present - old).nan_to_num(nan=BIG, posinf=BIG, neginf=-BIG)
        return torch.stack((torch.ones_like(gap), torch.where(old.isfinite(), gap, -BIG), old))

    def _loss(self, batches: list[Any]) -> torch.Tensor:
        batch_loss: Any = self._batch_loss
        losses = [batch_loss(copy_batch(batch)).detach().float().mean() for batch in batches]
        return torch.stack(losses).mean().to(self._monitor.meter.device)

    # What all ranks decide alike.

    def receive(
        self, tracked: TrackedOptimizer, update: int, findings: StateFindings, loss: float | None
    ) -> Offer | Outcome | None:
        """Take the loss and the scores of an update; return how a trial has ended with it."""
        if self.is_off:
            return None
        if findings.trial_failed or findings.cramped:
            self.is_off = True
            self.forget()
            if self._monitor.recorder.is_recording and self._batch_loss and not self.shield.is_down:
                why = "has no memory for four snapshots" if findings.cramped else "cannot"
                log.info("trimtab: no state is tried any more: a rank %s", why)
            return None
        if self.offer is not None and update > self.offer.until:
            self.forget()
        trial = self.open_trial
        if trial is not None:
            found = self._hear(trial, tracked, update, findings)
            trial.last_loss = math.nan if loss is None else loss
            return found
        if loss is not None:
            sigmas = self._level.sigmas_above(loss)
            if self.offer is None and self._schedule.opens(update, sigmas):
                snapshot = self._snapshots.newest(tracked.index, update - MIN_AGE)
                at = -1 if snapshot is None else snapshot
                self.open_trial = OpenTrial(at, since=tracked.num_updates + 1)
            else:
                self._level.learn(loss)
        return None

    def _hear(
        self, trial: OpenTrial, tracked: TrackedOptimizer, update: int, findings: StateFindings
    ) -> Offer | Outcome | None:
        """Take the scores of a batch; a trial also ends where a rank is not ready."""
        world, outcome = self._monitor.sync.ranks.world, None
        if update < trial.since:
            return None
        if findings.trial_scored == world:
            gap, old = findings.trial_gap / world, findings.trial_old / world
            is_known = math.isfinite(trial.last_loss)
            trial.gaps.append(gap)
            trial.old_losses.append(old)
            trial.recorded.append(trial.last_loss if is_known else old + gap)
            outcome = judge(trial.gaps, trial.old_losses, trial.recorded)
        if outcome is None and findings.trial_ready != world:
            outcome = Outcome.GONE
        if outcome is None:
            return None
        self.open_trial = None
        self._schedule.end(update, has_led_to_something=outcome is Outcome.OLD)
        if outcome is not Outcome.OLD:
            return outcome
        why = self._why_ask(trial, tracked, findings)
        gain = sum(trial.gaps[-WINDOW:]) / WINDOW
        lost, until = tracked.num_updates - trial.snapshot, update + ANSWER_UPDATES
        offer = Offer(trial.snapshot, gain, lost, why, until)
        if why is not None:
            self.offer, self._snapshots.kept_step = offer, offer.snapshot
        return offer

    def _why_ask(
        self, trial: OpenTrial, tracked: TrackedOptimizer, findings: StateFindings
    ) -> str | None:
        """Return why the older state is not restored unasked; None if it is."""
        edits = tracked.edits
        if edits.would_be_lost(trial.snapshot) or edits.first >= trial.snapshot:
            return "your code has written weights or state since"
        if findings.trial_changed:
            return self._what_changed or "settings have changed on a rank"
        if trial.since - trial.snapshot > MAX_AGE + WINDOW:
            return "the last snapshot from before is old"
        return 'recover.rollback is "ask"' if self._asks else None

    def forget(self) -> None:
        """A state was restored, an offer has expired, or no state is tried any more."""
        self.open_trial = self._candidates = self._scores = None
        self.offer = self._snapshots.kept_step = None
