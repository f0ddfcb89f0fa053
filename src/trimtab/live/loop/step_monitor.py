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
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.config import LiveConfig
from trimtab.core.errors import RunStopped
from trimtab.core.events import SETTING_CHANGED
from trimtab.journal.exit_request import RunExit
from trimtab.live.host.bad_data import BadData
from trimtab.live.host.resume_facts import ResumeFacts
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.loop.exit_hooks import ExitHooks
from trimtab.live.loop.skips import SkipDetector
from trimtab.live.loop.step_hooks import StepHooks
from trimtab.live.loop.step_sync import Measured, StateKeeper, StepSync
from trimtab.live.measure.batch_facts import RowLosses
from trimtab.live.measure.state_facts import OptionWatch
from trimtab.live.measure.step_loop import StepLoop
from trimtab.live.measure.step_meter import HEAD, PHASES, StepMeter, UserSignals, main_learning_rate
from trimtab.live.measure.telemetry import SlowMeter
from trimtab.live.protect.gate import Gate
from trimtab.live.protect.gate_reporter import report_promotion
from trimtab.live.ranks.exchange import ExchangeFailed, StepNote, StepState, copy_to_host
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.ranks.shards import count_copies
from trimtab.live.shield import Entrance, Shields, log


class StepFacts:
    """Collects the facts of a step and writes them into its note."""

    def __init__(
        self, optimizers: Sequence[Optimizer], scaler: Any, shields: Shields, device: torch.device
    ) -> None:
        self.user = UserSignals(device)
        self.row_losses = RowLosses()
        self.options = OptionWatch(optimizers)
        self.loop: StepLoop | None = None
        """Only if the user goes through the data by `guard.steps`."""
        self._optimizers = optimizers
        self._scaler = scaler
        self._shield = shields.user
        self._batch_shield = shields.batches

    def go_through(self, loop: StepLoop) -> None:
        self.loop = loop

    def note_loss_scale(self) -> None:
        """Take the scale that this step is computed with; `scaler.update()` changes it."""
        scale = getattr(self._scaler, "_scale", None)  # get_scale() would wait for the device
        if isinstance(scale, torch.Tensor):  # made by the first use of the scaler
            self.user.add(signals.LOSS_SCALE, scale)

    def has_bad_data(self, bad: BadData) -> bool:
        """Return whether the data of the present step is known to be bad."""
        if self.loop is None or self.loop.data_position not in bad.marks:
            return False
        mark = None
        if not self._batch_shield.is_down:
            with self._batch_shield.guarding("fingerprint"):
                mark = self.loop.fingerprint()
        return bad.has(self.loop.data_position, mark)

    def fill(self, note: StepNote) -> None:
        """Write the facts into the note of a step that ends."""
        for name, rate in main_learning_rate(self._optimizers).items():
            if isinstance(rate, torch.Tensor):
                self.user.add(name, rate)
            else:
                note.signals[name] = rate
        if self.loop is not None:
            note.data_position = self.loop.data_position
            note.signals[signals.DATA_SECONDS] = self.loop.data_seconds
            # Under a shield of its own: a batch may hold anything.
            if not self._batch_shield.is_down:
                with self._batch_shield.guarding("batch facts"):
                    note.signals |= self.loop.facts()
                    note.token_rows = self.loop.pop_token_rows()
        if self.row_losses.copies:
            note.row_losses = self.row_losses.pop()
        with self._shield.guarding("note"):
            if note.state is StepState.APPLIED and not self._shield.is_down:
                self.note_loss_scale()  # a skipped step is closed after `scaler.update()`
            on_host, names, values = self.user.pop()
            note.signals = on_host | note.signals
            if values is not None and values.device.type != "meta":
                note.device_names, note.device_values = names, copy_to_host(values)


class StepMonitor:
    """The inside of a guard: listens to the optimizers and closes steps."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        meter: StepMeter,
        slow: SlowMeter,
        gate: Gate | None,
        recorder: RunRecorder | None,
        shields: Shields,
        *,
        config: LiveConfig,
        first_step: int,
        scaler: Any,
        join: Callable[[], RankGroup | None],
        keeper: "Callable[[StepMonitor], StateKeeper] | None" = None,
    ) -> None:
        """Watch these optimizers from here on.

        `meter` measures every step, `slow` some of them. A guard that observes has no gate, only
        the first rank a recorder. `join` finds the other ranks; `keeper` makes what watches over
        the trained state, in a run that recovers.
        """
        self.shields = shields
        self.entrance = Entrance(self._step_aside)
        """What every call from the training loop goes through."""
        self.gate = gate
        self.next_step = first_step
        self.meter = meter
        self.facts = StepFacts(optimizers, scaler, shields, meter.device)
        self.optimizers = optimizers
        self.slow = slow
        self._config = config
        self._parallel = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        self._skips = SkipDetector(optimizers, scaler)
        self._note = StepNote(step=first_step)
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
        self._is_started = self._is_in_backward = False
        self._is_before_first = True
        """Whether no recorded step has come to its update yet."""
        self.keeper = None if keeper is None else keeper(self)
        """What watches over the trained state, and restores it."""
        self.sync = StepSync(
            slow,
            gate,
            recorder,
            shields,
            config,
            meter.device,
            keeper=self.keeper,
            join=join,
            on_leave=self._leave,
            on_failure=self._report_failure,
        )
        self.resume = ResumeFacts.of(recorder, optimizers, scaler, shields.resume, first_step)
        for shield in shields:
            shield.on_catch(self._report_failure)
        if recorder is not None and slow.activations is not None:
            slow.activations.on_token_losses = self.facts.row_losses.add_measured
        self.slow.arm()
        self._hooks = StepHooks(optimizers, self)
        # A handler in Python cannot run while a collective waits: with several ranks a SIGTERM
        # must end the process at once, as without trimtab.
        is_alone = self.sync.ranks.world == 1
        self._exit_hooks = ExitHooks(self.close) if recorder is not None and is_alone else None

    # What the guard calls.

    @property
    def recorder(self) -> RunRecorder | None:
        """What journals and judges; only on the first rank."""
        return self.sync.recorder

    @property
    def is_watching(self) -> bool:
        return self.sync.is_measuring

    @property
    def is_out(self) -> bool:
        """Whether this guard was closed or has failed; it counts steps and completes exchanges."""
        return self.sync.is_closed or self.shields.numbers.is_down

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
            self._note.is_recorded_here = True
            return False
        if self.gate is not None:
            self.gate.forget()
        grew = False
        if not self._note.is_recorded_here:
            with self.shields.telemetry.guarding("record"):
                self.slow.note_loss()
        else:
            if self._moved:
                self._skips.take_turns()  # the others have not moved
                self._close(StepState.APPLIED)
            elif self._note.state is StepState.INSPECTED:
                self._close(StepState.BROKEN_OFF)
            else:
                ended, grew = self._skips.inspect()
                if ended is not None:
                    self._close(ended)
        self._skips.note_record(loss)
        self._note.is_recorded_here = True
        self._note.state = StepState.RECORDED
        return grew

    def note_clip(self) -> None:
        """The user has clipped: after that no more losses of this step come."""
        self._skips.note_clip()

    def note_generators(self) -> None:
        """One of the moments at which the generators may be as they were saved."""
        with self.shields.resume.guarding("steps"):
            self.resume.note_generators()

    def begin_loop(self, loop: StepLoop, *, position_is_given: bool) -> None:
        """The data is gone through by this loop."""
        self.facts.go_through(loop)
        self.resume.begin_loop(loop, position_is_given=position_is_given)

    def begin_loop_step(self, loop: StepLoop) -> None:
        """A step of this loop begins; another one may have been gone through in between, for a
        validation."""
        self.num_calls += 1
        self.facts.go_through(loop)
        self.resume.go_through(loop)
        self.note_generators()

    def continue_loop(self, step: int) -> None:
        """The next step of the user's loop has this number."""
        self.loop_step = step

    def count_call(self) -> None:
        self.num_calls += 1

    def skip(self) -> None:
        if self._note.is_recorded_here and not self._moved and not self.is_out:
            self._close(StepState.SKIPPED)

    def end_step(self, number: int) -> None:
        """The step loop has come to the end of a step, whether or not an optimizer moved."""
        if self._note.is_recorded_here and not self.is_out:
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
        sync = self.sync
        if sync.is_closed or os.getpid() != self._pid:  # a forked child is not the run
            return
        was_watching, sync.is_closed = self.is_watching, True
        self.slow.close()
        if sync.recorder is not None:
            self._end_journal(sync.recorder, how, with_records=was_watching)
        if self._exit_hooks is not None:
            with self.shields.host.guarding("exit hooks"):
                self._exit_hooks.remove()
        if sync.ranks.world > 1 and not sync.ranks.has_left:
            # The other ranks wait for this one in their next `optimizer.step()`.
            sync.ranks.leave()
            self._hooks.keep_alive(self)
        else:
            self._leave()
            self._hooks.remove()

    def _end_journal(self, recorder: RunRecorder, how: str, *, with_records: bool) -> None:
        shield = self.shields.host
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
        if self._is_before_first and self._note.is_recorded_here:
            self._is_before_first = False
            with self.shields.resume.guarding("first update"):
                self.resume.before_update()
        if self._is_in_backward:
            return
        if id(optimizer) in self._moved:  # one more update, without a record
            self._skips.take_turns()
            self._close(StepState.APPLIED)
        if not self._moved and self._note.state is StepState.INSPECTED:
            if self.gate is not None:  # before anything is measured: a scale would falsify norms
                self.gate.forget()
            self._close(StepState.BROKEN_OFF)
        if not self.sync.ranks.has_left:
            self.sync.exchange(
                self._note, optimizer, self._measure(optimizer), is_alone=self.is_joining
            )
            self._note.state = StepState.INSPECTED

    def carry_out(self, optimizer: Optimizer) -> None:
        """Runs before the update, also if something has failed since the ranks have agreed.

        The other ranks count on what this one owes the exchange, and carry out the decision.
        """
        self._complete_exchange()
        if self.gate is None:
            return
        if self.keeper is not None and self.keeper.restores(optimizer):
            self.sync.has_restored = True
            return  # there are no gradients left to take a step with
        if not self.gate.before(optimizer) and self.sync.ranks.world > 1:
            raise RunStopped(
                f"step {self._note.step}: what the ranks have agreed on could not be carried out "
                "on this one: restart from the last checkpoint",
                RunExit.RELAUNCH,
            )
        while self.gate.promoted:
            report_promotion(self.recorder, self.next_step, self.gate.promoted.pop())

    def _complete_exchange(self) -> None:
        """Make what this rank owes the exchange of this update, if it has failed or is closed."""
        ranks = self.sync.ranks
        if ranks.world == 1 or ranks.has_left or self._is_in_backward:
            return
        try:
            ranks.complete(is_alone=self.is_joining)
        except ExchangeFailed:
            ranks.has_left = True
        if ranks.has_left:
            self._leave()

    def after_update(self, optimizer: Optimizer) -> None:
        """Runs after the update: leave no trace on the optimizer, close the step."""
        if self.gate is not None:
            self.gate.after(optimizer)
        if self.keeper is not None:
            self.keeper.after_update(optimizer)
        if self.is_out:
            self.next_step += int(self._note.is_recorded_here)
            self._note.is_recorded_here = False
        if self.is_out or self._is_in_backward or self.sync.ranks.has_left:
            return
        self._moved.add(id(optimizer))
        self._skips.note_update(optimizer)
        if optimizer is self.optimizers[-1] and self.is_watching:
            with self.shields.telemetry.guarding("after the update"):
                self._note.has_telemetry = self.slow.after_update(self._note)
            if self.recorder is not None:
                with self.shields.user.guarding("options"):
                    self._note_changes(self.recorder)
        if len(self._moved) == len(self.optimizers):
            self._close(StepState.APPLIED)

    def _note_changes(self, recorder: RunRecorder) -> None:
        """Journal what code has changed about the optimizers."""
        step = self._note.step
        if resized := self.facts.options.resized():
            # Norms are of other parameters from here on: the past is no measure of them.
            what = "parameters of the optimizer: {} before, now {}".format(*resized)
            recorder.event("planned change", step, {"what": what})
        for change in self.facts.options.changes() if self._note.has_telemetry else ():
            recorder.event(SETTING_CHANGED, step, change)
            words = "trimtab: step %d: your code has changed %s from %s to %s"
            log.info(words, step, *change.values())

    def cannot_gate(self, optimizer: Optimizer, why: str) -> None:
        """Protect no longer: what this optimizer does in a step cannot be discarded as a whole."""
        if self.gate is not None:
            self.gate.refuse(optimizer, why)

    # The parts of a step.

    def _start(self) -> None:
        """The first update: ask for the ranks again, and compare parameters between them."""
        if self._is_started:
            return
        self._is_started = True
        if self.sync.ranks.world == 1:
            self.sync.connect()
            if self.sync.ranks.world > 1 and self._exit_hooks is not None:
                self._exit_hooks.remove()
        if self.sync.ranks.world > 1:
            copies = count_copies(
                self.slow.parameters, self.sync.ranks.group, self._config.replicas
            )
            self.meter.gradients.set_copies(self.slow.parameters, copies)
            self.slow.prepare(self.sync.ranks.group)
        self.resume.set_world(self.sync.ranks.world)

    def _measure(self, optimizer: Optimizer) -> Measured:
        if self._moved:  # one more optimizer of the same step: has it gone bad since?
            head = self.meter.empty_head()
            squares = self.meter.gradients.squares([optimizer]) if self.gate is not None else None
            if squares is not None:
                head[HEAD.index("grad_squares")] = squares
            return Measured(head=head, loss=None)
        self._inspect_gradients(optimizer)
        if self.recorder is not None:
            with self.shields.batches.guarding("bad data"):
                self._note.has_bad_data = self.facts.has_bad_data(self.recorder.bad_data)
        phase = self._num_steps % PHASES if self._note.is_recorded_here else 0
        return Measured(
            head=self.meter.head(phase),
            loss=self.meter.local_loss(self.sync.ranks.world),
            may_shrink=self.meter.norm_is_of_gradients,
        )

    def _inspect_gradients(self, optimizer: Optimizer) -> None:
        """Measure the norm of what is applied, unless it is known of these very gradients."""
        self._note.norm_is_after_clip = not self.meter.norm_is_given
        fresh = self._skips.fresh_optimizers(optimizer)
        if self.meter.norm_is_given:
            self.meter.unscale_given_norm()
            if self.gate is None or all(map(self.gate.is_as_clipped, fresh)):
                return
        self.meter.set_squares(self.meter.gradients.squares(fresh))

    def _close(self, state: StepState) -> None:
        """End the step and begin the next one."""
        note = self._note
        note.state, note.clock = state, time.time()
        if self.is_watching:
            if note.is_recorded_here and self.recorder is not None:
                with self.shields.host.guarding("note"):
                    self.facts.fill(note)
            if state in (StepState.SKIPPED, StepState.OVERFLOW):
                self.sync.send_skipped(note, self.meter.head(0))
        note.is_closed = True
        self.next_step += int(note.is_recorded_here)
        # Whether a loop skipped a step is partly a guess; these are not, and the same on all ranks.
        self._num_steps += int(bool(self._moved) or state is StepState.OVERFLOW)
        self._skips.end_step()
        self._begin_step()
        self.sync.release()
        with self.shields.telemetry.guarding("new step"):
            self.slow.begin_step()

    def _begin_step(self) -> None:
        self.meter.reset()
        self._moved.clear()
        self._note = StepNote(step=self.next_step)
        if self.gate is not None:
            self.gate.end_step()

    def _decide_no_more(self) -> None:
        """Drop what was decided before: from here on the ranks hear that this one leaves."""
        if self.gate is not None:
            self.gate.end_step()
        if self.keeper is not None:
            with self.shields.recovery.guarding("end"):
                self.keeper.close()

    def _leave(self) -> None:
        """All ranks have agreed, or cannot: give everything back."""
        self._decide_no_more()
        if self.gate is not None:
            self.gate.close()
        if self.sync.is_closed:
            self._hooks.deactivate()

    def _refuse_backward(self) -> None:
        if self._is_in_backward:
            return
        self._is_in_backward = True
        log.warning(
            "trimtab: optimizer.step() runs inside backward: only losses are recorded, nothing is "
            "protected"
        )
        if self.gate is not None:
            self.gate.close()

    @property
    def is_joining(self) -> bool:
        """Whether DDP's join is at work: then not all ranks come to every step."""
        return any(module._join_config.enable for module in self._parallel)

    def _report_failure(self, part: str, place: str, error: str) -> None:
        if self.recorder is not None:
            facts = {"part": part, "place": place, "error": error}
            self.recorder.event("trimtab failed", self.next_step, facts)
