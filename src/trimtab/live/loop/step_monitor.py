"""StepMonitor: the life of a step, on every rank, whatever happens.

    guard.record      losses are added up                            OPEN -> RECORDED
    pre-hook          gradients are inspected, numbers are summed
                      over ranks, the gate decides; those of `lag`
                      exchanges ago arrive                           -> INSPECTED
    the update        happens, or leaves every bit as it was
    post-hook         telemetry; the next step begins                -> APPLIED
    no update         the next record, the step loop or guard.skip() -> SKIPPED, OVERFLOW

Ranks exchange numbers in every call of `optimizer.step()`, recorded or not, and nowhere else: that
is where all of them come anyway. A guard that was closed, or has failed, does nothing but make
those exchanges, until all ranks have agreed to leave.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trimtab.core.config import LiveConfig
from trimtab.core.errors import RunStopped
from trimtab.core.events import SETTING_CHANGED
from trimtab.journal.exit_request import RunExit
from trimtab.live.host.no_recorder import NoRecorder
from trimtab.live.host.recorder import Recorder
from trimtab.live.host.resume_facts import ResumeFacts
from trimtab.live.host.rollback import RollbackEffect
from trimtab.live.loop.skips import SkipDetector
from trimtab.live.loop.state_guard import StateGuard
from trimtab.live.loop.step_facts import StepFacts
from trimtab.live.loop.step_hooks import ExitHooks, Hooks, StepHooks
from trimtab.live.loop.step_sync import Packet, StepSync
from trimtab.live.measure.batch_facts import RowLosses
from trimtab.live.measure.step_loop import StepLoop
from trimtab.live.measure.step_meter import PHASES, StepMeter
from trimtab.live.measure.telemetry import TelemetrySampler
from trimtab.live.measure.time_budget import StepClock
from trimtab.live.protect.gate import Gate, NoGate
from trimtab.live.protect.gate_reporter import report_promotion
from trimtab.live.ranks.exchange import ExchangeFailed, StepState, TrainStep
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.ranks.shards import count_copies
from trimtab.live.shield import Entrance, Shields, log


class StepMonitor:
    """The inside of a guard: listens to the optimizers and closes steps."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        meter: StepMeter,
        sampler: TelemetrySampler,
        gate: Gate | NoGate,
        recorder: Recorder | NoRecorder,
        shields: Shields,
        *,
        config: LiveConfig,
        first_step: int,
        scaler: Any,
        row_losses: RowLosses,
        clock: StepClock,
        rollback: RollbackEffect,
        join: Callable[[], RankGroup | None],
        make_hooks: "Callable[[StepMonitor], Hooks]" = StepHooks,
    ) -> None:
        """Prepare to watch these optimizers, from `start` on.

        `meter` measures every step, `sampler` some of them. `clock` hears of every step, for those
        who measure by time. `rollback` is what a person has asked this launch to do. `join` finds
        the other ranks. `make_hooks` makes what calls this monitor before and after an update.
        """
        self.shields = shields
        self.entrance = Entrance(self._step_aside)
        """What every call from the training loop goes through."""
        self.gate = gate
        self.next_step = first_step
        self.meter = meter
        self.rollback = rollback
        self.facts = StepFacts(optimizers, scaler, shields, meter.device, row_losses, rollback)
        self.optimizers = optimizers
        self.sampler = sampler
        self._config = config
        self._parallel = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        self.hooks = make_hooks(self)
        self._skips = SkipDetector(optimizers, scaler, is_sharded=self.hooks.hides_gradients)
        self._step = TrainStep(step=first_step)
        self._moved: set[int] = set()
        self.loop_step = first_step
        """The number of the next step of the user's loop. It differs from `next_step` where a step
        of the loop has two updates, or an update several steps."""
        self.num_losses = 0
        """Losses that were recorded so far."""
        self._num_steps = 0
        self.num_calls = 0
        """Calls of the guard by the user's loop, evaluation included: a sign of life."""
        self._pid = os.getpid()
        self._join = join
        self.clock = clock
        self._is_closed = self._is_started = self._is_in_backward = False
        self._is_before_first = True
        """Whether no recorded step has come to its update yet."""
        self.state_guard = StateGuard()
        """What watches over the trained state, and restores it."""
        self.sync = StepSync(
            sampler,
            gate,
            recorder,
            shields,
            config,
            meter.device,
            meter.arithmetic,
            on_leave=self._leave,
            on_failure=self._report_failure,
        )
        self.resume = ResumeFacts(
            optimizers,
            scaler,
            recorder.past,
            shields.resume,
            first_step=first_step,
            rollback=rollback,
        )
        recorder.audit(self.resume)
        for shield in shields:
            shield.on_catch(self._report_failure)
        self._exit_hooks = ExitHooks(self.close)

    def start(self, state_guard: StateGuard) -> None:
        """Find the other ranks, and watch from here on."""
        self.state_guard = state_guard
        self.sync.add_state_guard(state_guard)
        self._find_ranks()
        self.sampler.arm()
        self.hooks.register(self.optimizers)
        # A handler in Python cannot run while a collective waits: with several ranks a SIGTERM
        # must end the process at once, as without trimtab.
        if self.recorder.is_recording and self.sync.ranks.world == 1:
            self._exit_hooks.register()

    def _find_ranks(self) -> None:
        group = self._join()
        if group is not None:
            self.sync.connect(group)
            self.rollback.hear(group.shared)

    # What the guard calls.

    @property
    def recorder(self) -> Recorder | NoRecorder:
        """What journals; only on the first rank it does."""
        return self.sync.recorder

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_out(self) -> bool:
        """Whether this guard was closed or has failed; it counts steps and completes exchanges."""
        return self._is_closed or self.shields.numbers.is_down

    @property
    def is_watching(self) -> bool:
        """Whether steps are measured: this guard is not out, and the ranks still exchange."""
        return not self.is_out and not self.sync.ranks.has_left

    def _step_aside(self, operation: str, error: Exception) -> None:
        """Take the guard out of the run on all ranks, because of an error of ours."""
        self.shields.numbers.catch(operation, error)
        try:
            self.sync.ranks.leave()
            if self.sync.ranks.has_left:
                self._leave()
        except Exception:  # nothing is left to try; hooks of a guard that is out do nothing
            log.exception("trimtab could not give everything back")

    def begin_record(self, loss: Any) -> bool:
        """A loss is about to be recorded: close a step that ended without an update.

        Returns whether a backward pass has followed the last loss of this step.
        """
        self.num_losses += 1
        if self.is_out:
            self._step.record()
            return False
        self.gate.forget()
        grew = False
        if not self._step.is_recorded_here:
            if self.sync.ranks.world > 1:
                with self.shields.telemetry.guarding("record"):
                    self.sampler.note_loss()
        else:
            if self._moved:
                self._skips.optimizers_alternate = True  # the others have not moved
                self._close(StepState.APPLIED)
            elif self._step.state is StepState.INSPECTED:
                self._close(StepState.BROKEN_OFF)
            else:
                ended, grew = self._skips.inspect()
                if ended is not None:
                    self._close(ended)
        self._skips.note_record(loss)
        self._step.record()
        return grew

    def note_clip(self) -> None:
        """The user has clipped: after that no more losses of this step come."""
        self._skips.was_clipped = True

    def note_generators(self) -> None:
        with self.shields.resume.guarding("steps"):
            self.resume.note_generators()

    def begin_loop(self, loop: StepLoop, *, position_is_given: bool) -> None:
        self.facts.loop = self.resume.loop = loop
        self.resume.position_is_given = position_is_given

    def begin_loop_step(self, loop: StepLoop) -> None:
        """A step of this loop begins; another one may have been gone through in between, for a
        validation."""
        self.num_calls += 1
        self.facts.loop = self.resume.loop = loop
        self.note_generators()

    def continue_loop(self, step: int) -> None:
        self.loop_step = step

    def skip(self) -> None:
        if self._step.is_recorded_here and not self._moved and not self.is_out:
            self._close(StepState.SKIPPED)

    def end_step(self, number: int) -> None:
        """The step loop has come to the end of a step, whether or not an optimizer moved."""
        if self._step.is_recorded_here and not self.is_out:
            if self._moved:
                self._close(StepState.APPLIED)
            elif not self._skips.has_fresh_gradients():
                overflow = self._skips.scaler_was_updated()
                self._close(StepState.OVERFLOW if overflow else StepState.SKIPPED)
            else:
                return  # the user accumulates over several steps of the loop
        if self._skips.num_updates or not self.is_watching:
            self.next_step = max(self.next_step, number + 1)

    def close(self, how: str) -> None:
        """Deliver what is under way and end the journal; leave as soon as all ranks agree."""
        if self._is_closed or os.getpid() != self._pid:  # a forked child is not the run
            return
        was_watching, self._is_closed = self.is_watching, True
        self.sampler.close()
        if self.recorder.is_recording:
            self._end_journal(how, with_records=was_watching)
        with self.shields.host.guarding("exit hooks"):
            self._exit_hooks.remove()
        ranks = self.sync.ranks
        if ranks.world > 1 and not ranks.has_left:
            # The other ranks wait for this one in their next `optimizer.step()`.
            ranks.leave()
            self.hooks.keep_alive(self)
        else:
            self._leave()
            self.hooks.remove()

    def _end_journal(self, how: str, *, with_records: bool) -> None:
        recorder, shield = self.recorder, self.shields.host
        if with_records:
            with shield.guarding("last records"):
                self.sync.drain()
        with shield.guarding("end of the journal"):
            recorder.close(how)
        with shield.guarding("summary"):
            more = f"; FAILED: {', '.join(failed)}" if (failed := self.shields.failed) else ""
            log.info("trimtab: ended (%s): %s%s", how, recorder.summary(), more)

    # What the hooks call.

    def before_update(self, optimizer: Optimizer) -> None:
        """Runs before the update: inspect the gradients, exchange, decide."""
        if self.is_out:
            self._decide_no_more()
            return
        if torch._C._current_graph_task_id() != -1:
            self._refuse_backward()
        self._start()
        # DCP makes updates without a record, to load into their state.
        if self._is_before_first and self._step.is_recorded_here:
            self._is_before_first = False
            with self.shields.resume.guarding("first update"):
                self.resume.before_update()
        if self._is_in_backward:
            return
        if id(optimizer) in self._moved:  # one more update, without a record
            self._skips.optimizers_alternate = True
            self._close(StepState.APPLIED)
        if not self._moved and self._step.state is StepState.INSPECTED:
            self.gate.forget()  # before anything is measured: a scale would falsify norms
            self._close(StepState.BROKEN_OFF)
        sync, step = self.sync, self._step
        if sync.ranks.has_left:
            return
        sync.exchange(self._measure(optimizer), optimizer, is_alone=self.is_joining)
        for packet in sync.arrivals():
            sync.act_upon(packet)
            sync.deliver(packet)
        sync.stop_if_stuck(step.step)
        step.state = StepState.INSPECTED

    def carry_out(self, optimizer: Optimizer) -> None:
        """Runs before the update, also if something has failed since the ranks have agreed.

        The other ranks count on what this one owes the exchange, and carry out the decision.
        """
        self._complete_exchange()
        self.state_guard.end_if_asked()
        self.state_guard.poll()
        if self.state_guard.restore_if_due(optimizer):
            self.sync.note_restore()
            return  # there are no gradients left to take a step with
        if not self.gate.before(optimizer) and self.sync.ranks.world > 1:
            raise RunStopped(
                f"step {self._step.step}: what the ranks have agreed on could not be carried out "
                "on this one: restart from the last checkpoint",
                RunExit.RELAUNCH,
            )
        if self.recorder.is_recording:
            for name in self.gate.pop_promoted():
                report_promotion(self.recorder.event, self.next_step, name)

    def _complete_exchange(self) -> None:
        """Make what this rank owes the exchange of this update, if it has failed or is closed."""
        ranks = self.sync.ranks
        if ranks.world == 1 or ranks.has_left or self._is_in_backward:
            return
        with suppress(ExchangeFailed):  # then it has left
            ranks.complete(is_alone=self.is_joining)
        if self.sync.ranks.has_left:
            self._leave()

    def after_update(self, optimizer: Optimizer) -> None:
        """Runs after the update: leave no trace on the optimizer, close the step."""
        self.gate.after(optimizer)
        if optimizer is self.optimizers[-1]:
            self.clock.update_ended()
        self.state_guard.after_update(optimizer)
        is_out = self.is_out
        if is_out:
            self.next_step += int(self._step.is_recorded_here)
            self._step = TrainStep(step=self.next_step)
        if is_out or self._is_in_backward or self.sync.ranks.has_left:
            return
        self._moved.add(id(optimizer))
        self._skips.note_update(optimizer)
        if optimizer is self.optimizers[-1]:
            shields = self.shields
            shields.telemetry.call("after the update", self._measure_telemetry)
            if self.sync.recorder.is_recording:
                shields.user.call("options", self._note_changes)
        if len(self._moved) == len(self.optimizers):
            self._close(StepState.APPLIED)

    def _measure_telemetry(self) -> None:
        self._step.has_telemetry = self.sampler.after_update(self._step)

    def _note_changes(self) -> None:
        """Journal what code has changed about the optimizers."""
        recorder, step = self.recorder, self._step.step
        if resized := self.facts.options.resized():
            # Norms are of other parameters from here on: the past is no measure of them.
            what = "parameters of the optimizer: {} before, now {}".format(*resized)
            recorder.event("planned change", step, {"what": what})
        for change in self.facts.options.changes() if self._step.has_telemetry else ():
            recorder.event(SETTING_CHANGED, step, change)
            words = "trimtab: step %d: your code has changed %s from %s to %s"
            log.info(words, step, *change.values())

    def cannot_gate(self, optimizer: Optimizer, why: str) -> None:
        """Protect no longer: what this optimizer does in a step cannot be discarded as a whole."""
        self.gate.refuse(optimizer, why)

    # The parts of a step.

    def _start(self) -> None:
        """The first update: ask for the ranks again, and compare parameters between them."""
        if self._is_started:
            return
        self._is_started = True
        if self.sync.ranks.world == 1:
            self._find_ranks()
            if self.sync.ranks.world > 1:
                self._exit_hooks.remove()
        if self.sync.ranks.world > 1:
            shared = self.sampler.shared
            copies = count_copies(shared, self.sync.ranks.group, self._config.replicas)
            self.meter.gradients.set_copies(shared, copies)
            self.sampler.prepare(self.sync.ranks.group)
        self.resume.world = self.sync.ranks.world

    def _measure(self, optimizer: Optimizer) -> Packet:
        step, meter = self._step, self.meter
        if self._moved:  # one more optimizer of the same step: has it gone bad since?
            squares = meter.gradients.squares([optimizer]) if self.gate.is_voting else None
            return Packet(step=step, sums=meter.step_sums_of_norm(squares))
        is_after_clip = not meter.norm_is_given
        self._inspect_gradients(optimizer)
        has_bad_data = False
        if self.facts.loop is not None:
            with self.shields.batches.guarding("bad data"):
                has_bad_data = self.facts.has_bad_data(self.recorder.bad_data)
        step.norm_is_after_clip, step.has_bad_data = is_after_clip, has_bad_data
        return Packet(
            step=step,
            sums=meter.step_sums(self._num_steps % PHASES if step.is_recorded_here else 0),
            loss=meter.local_loss(self.sync.ranks.world) if self.gate.is_voting else None,
            may_scale_down=meter.norm_is_of_gradients,
        )

    def _inspect_gradients(self, optimizer: Optimizer) -> None:
        """Measure the norm of what is applied, unless it is known of these very gradients."""
        fresh = self._skips.fresh_optimizers(optimizer)
        if self.meter.norm_is_given:
            self.meter.unscale_given_norm()
            if all(map(self.gate.is_as_clipped, fresh)):
                return
        self.meter.set_squares(self.meter.gradients.squares(fresh))

    def _close(self, state: StepState) -> None:
        """End the step and begin the next one."""
        step = self._step
        step.state, step.clock = state, time.time()
        if self.is_watching:
            if step.is_recorded_here and self.sync.recorder.is_recording:
                self.shields.host.call("note", self.facts.fill, step)
            if state in (StepState.SKIPPED, StepState.OVERFLOW):
                self.sync.send_skipped(step, self.meter.step_sums(0))
        step.is_closed = True
        self.next_step += int(step.is_recorded_here)
        # Whether a loop skipped a step is partly a guess; these are not, and the same on all ranks.
        self._num_steps += int(bool(self._moved) or state is StepState.OVERFLOW)
        self._skips.was_clipped = False
        self._begin_step()
        self.sync.flush()
        if self.sync.ranks.world > 1:
            with self.shields.telemetry.guarding("new step"):
                self.sampler.begin_step()
        self.clock.step_ended()

    def _begin_step(self) -> None:
        self.meter.reset()
        self._moved.clear()
        self._step = TrainStep(step=self.next_step)
        self.gate.end_step()

    def _decide_no_more(self) -> None:
        """Drop what was decided before: from here on the ranks hear that this one leaves."""
        self.gate.end_step()
        with self.shields.recovery.guarding("end"):
            self.state_guard.close()

    def _leave(self) -> None:
        """All ranks have agreed, or cannot: give everything back."""
        self._decide_no_more()
        self.gate.close()
        if self._is_closed:
            self.hooks.deactivate()

    def _refuse_backward(self) -> None:
        if self._is_in_backward:
            return
        self._is_in_backward = True
        log.warning(
            "trimtab: optimizer.step() runs inside backward: only losses are recorded, nothing is "
            "protected"
        )
        self.gate.close()

    @property
    def is_joining(self) -> bool:
        """Whether DDP's join is at work: then not all ranks come to every step."""
        return bool(self._parallel) and any(m._join_config.enable for m in self._parallel)

    def _report_failure(self, part: str, place: str, error: str) -> None:
        facts = {"part": part, "place": place, "error": error}
        self.recorder.event("trimtab failed", self.next_step, facts)
