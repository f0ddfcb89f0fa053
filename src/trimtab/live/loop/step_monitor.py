"""StepMonitor: the life of a step, on every rank, whatever happens.

    guard.record      losses are added up                            OPEN -> RECORDED
    pre-hook          gradients are looked at, ranks meet, the gate
                      decides; numbers of `lag` meetings ago arrive  -> LOOKED_AT
    the update        happens, or leaves every bit as it was
    post-hook         telemetry; the next step begins                -> APPLIED
    no update         the next record, the step loop or guard.skip() -> SKIPPED, OVERFLOW

Ranks meet in every call of `optimizer.step()`, recorded or not, and nowhere else: that is where all
of them come anyway. A closed guard goes on coming there until all ranks have agreed to part.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.config import LiveConfig
from trimtab.core.errors import NonFiniteRun
from trimtab.live.host.in_flight import InFlight, copy_to_host
from trimtab.live.host.record_assembler import RecordAssembler
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.host.step_note import StepNote, StepState
from trimtab.live.host.telemetry_chunks import Chunk
from trimtab.live.loop.exit_hooks import ExitHooks
from trimtab.live.loop.skips import SkipDetector
from trimtab.live.loop.step_hooks import StepHooks
from trimtab.live.loop.step_loop import StepLoop
from trimtab.live.measure.slow_meter import SlowMeter
from trimtab.live.measure.step_meter import (
    HEAD,
    PHASES,
    StepMeter,
    UserSignals,
    have_slipped,
)
from trimtab.live.optimizers import main_learning_rate
from trimtab.live.protect.gate import Decision, Gate
from trimtab.live.protect.gate_reporter import VOTE, report_promotion
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.ranks.rank_sync import RankSync
from trimtab.live.ranks.rank_vote import OUT
from trimtab.live.ranks.replicas import count_copies
from trimtab.live.shield import Shields, log

_leaving: set["StepMonitor"] = set()
"""Closed guards that still come to meetings: they must not be collected as garbage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is needed to understand the numbers of a meeting when they arrive."""

    note: StepNote
    chunk: Chunk | None
    report_names: tuple[str, ...] = ()


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
        replicas: int | None,
        join: Callable[[], RankGroup | None],
    ) -> None:
        self.shields = shields
        self.gate = gate
        self.recorder = recorder
        """Only the first rank has one."""
        self.next_step = first_step
        self.loop: StepLoop | None = None
        self.meter = meter
        self.user = UserSignals(meter.device)
        self._slow = slow
        self.optimizers = optimizers
        self._config = config
        self._scaler = scaler
        self._replicas = replicas
        self._join = join
        self._parallel = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        self._skips = SkipDetector(optimizers, scaler)
        self._in_flight = InFlight(config.lag_steps)
        self._note = StepNote(step=first_step)
        self._moved: set[int] = set()
        self._decision: Decision | None = None
        self._num_steps = self._num_nonfinite = self._num_calls = 0
        self._is_closed = self._is_started = self._is_in_backward = self._is_draining = False
        self._assembler: RecordAssembler | None = None
        self.sync = RankSync(RankGroup(), meter.device)
        for shield in shields:
            shield.on_catch(self._report_failure)
        self._connect(first=True)
        self._slow.arm()
        self._hooks = StepHooks(optimizers, self)
        self._exit_hooks = ExitHooks(self.close) if recorder is not None else None

    # What the guard calls.

    @property
    def is_watching(self) -> bool:
        """Whether anything is still measured here."""
        return not (self._is_closed or self.shields.numbers.is_down or self.sync.has_parted)

    def begin_record(self, loss: Any) -> bool:
        """A loss is about to be recorded: close a step that ended without an update.

        Returns whether a backward pass has followed the last loss of this step.
        """
        if self.gate is not None:
            self.gate.forget()
        grew = False
        if self._note.is_recorded_here:
            if self._moved:
                self._skips.takes_turns = True  # the others have not moved
                self._close(StepState.APPLIED)
            else:
                ended, grew = self._skips.look()
                if ended is not None:
                    self._close(ended)
        self._skips.note_record(loss)
        self._note.is_recorded_here = True
        self._note.state = StepState.RECORDED
        return grew

    def note_loss_scale(self) -> None:
        """Take the scale that this step is computed with; `scaler.update()` changes it."""
        scale = getattr(self._scaler, "_scale", None)  # get_scale() would wait for the device
        if isinstance(scale, torch.Tensor):  # made by the first use of the scaler
            self.user.add(signals.LOSS_SCALE, scale)

    def note_clip(self) -> None:
        """The user has clipped: after that no more losses of this step come."""
        self._skips.was_clipped = True

    def skip(self) -> None:
        """The user does not take this step."""
        if self._note.is_recorded_here and not self._moved:
            self._close(StepState.SKIPPED)

    def end_step(self, number: int) -> None:
        """The step loop has come to the end of a step, whether or not an optimizer moved."""
        if self._note.is_recorded_here and not self._is_closed:
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
        if self._is_closed:
            return
        was_watching, self._is_closed = self.is_watching, True
        self._slow.disarm()
        if self.recorder is not None:
            if was_watching:
                with self.shields.host.guarding("last records"):
                    self._drain()
            with self.shields.host.guarding("end of the journal"):
                self.recorder.close(how)
            failed = self.shields.failed
            log.info(
                "trimtab: closed (%s): %s%s",
                how,
                self.recorder.summary(),
                f"; FAILED: {', '.join(failed)}" if failed else "",
            )
        if self._exit_hooks is not None:
            self._exit_hooks.remove()
        if self.sync.world == 1 or self.sync.has_parted:
            self._leave()
        else:  # the other ranks wait for this one in their next `optimizer.step()`
            self.sync.leave()
            _leaving.add(self)

    def abort(self) -> None:
        """The guard could not begin on some rank: leave nothing behind."""
        self._is_closed = True
        self._slow.disarm()
        if self.recorder is not None:
            self.recorder.journal.close("another rank could not begin")
        if self._exit_hooks is not None:
            self._exit_hooks.remove()
        self._leave()

    def report_promotion(self, name: str) -> None:
        """An optimizer now runs fused and did not before."""
        if self.recorder is not None:
            report_promotion(self.recorder, self.next_step, name)

    # What the hooks call.

    def before_update(self, optimizer: Optimizer) -> None:
        """Look at the gradients, meet the other ranks, decide; numbers of earlier steps arrive."""
        if torch._C._current_graph_task_id() != -1:
            self._refuse_backward()
        self._start()
        if self._is_in_backward:
            return
        if id(optimizer) in self._moved:  # one more update, without a record
            self._skips.takes_turns = True
            self._close(StepState.APPLIED)
        if not self.sync.has_parted:
            self._meet(optimizer)
            self._note.state = StepState.LOOKED_AT
        if self.gate is not None:
            self.gate.before(optimizer, self._decision)

    def after_update(self, optimizer: Optimizer) -> None:
        """Leave no trace on the optimizer; close the step after the last one."""
        if self.gate is not None:
            self.gate.after(optimizer)
        if self._is_in_backward or self.sync.has_parted:
            self._decision = None
            return
        self._moved.add(id(optimizer))
        self._skips.note_update(optimizer)
        if optimizer is self.optimizers[-1]:
            self._measure_slow()
        if len(self._moved) == len(self.optimizers):
            self._close(StepState.APPLIED)

    def cannot_gate(self, optimizer: Optimizer, why: str) -> None:
        """Protect no longer: what this optimizer does in a step cannot be discarded as a whole."""
        if self.gate is not None:
            self.gate.refuse(optimizer, why)

    # The parts of a step.

    def _connect(self, *, first: bool) -> None:
        """Find the other ranks; asked again at the first update if there were none."""
        group = self._join()
        if group is None:
            group = RankGroup(slots=self._slow.slots) if first else None
        if group is None:
            return
        if not first and group.rank > 0 and self.recorder is not None:
            self.recorder.close(f"rank {group.rank} has joined; the first rank journals")
            self.recorder = self._assembler = None
        self.sync = RankSync(group, self.meter.device)
        self._slow.connect(group.slots)
        if self.recorder is not None:
            self._assembler = RecordAssembler(self.recorder, group.slots, group.world)

    def _start(self) -> None:
        """The first update: ask for the ranks again, and compare parameters between them."""
        if self._is_started:
            return
        self._is_started = True
        if self.sync.world == 1:
            self._connect(first=False)
        if self.sync.world > 1:
            with self.shields.numbers.guarding("comparing ranks"):
                parameters = self._slow.parameters
                copies = count_copies(parameters, self.sync.group, self._replicas)
                self.meter.gradients.set_copies(parameters, copies)
                self._slow.prepare()

    def _meet(self, optimizer: Optimizer) -> None:
        is_first, is_alone = not self._moved, self._is_joining
        head = loss = None
        phase = self._num_steps % PHASES if self._note.is_recorded_here else 0
        if self.is_watching:
            with self.shields.numbers.guarding("measure"):
                if is_first:
                    self._look_at_gradients(optimizer)
                    loss = self.meter.local_loss(self.sync.world)
                    head = self.meter.head(phase)
                else:
                    head = self._further_head(optimizer)
        if head is None:
            head, loss = self.meter.empty_head(), None
            self.sync.leave()
        if self.sync.has_parted and self.sync.world == 1:
            return
        chunk, riding = self._slow.chunks.pop()
        total = self.sync.sum(head, riding, is_alone=is_alone)
        decision = None
        if self.gate is not None and not self.gate.has_parted and not is_alone:
            if is_first:
                decision = self.gate.decide(
                    self.sync,
                    total,
                    loss,
                    is_recorded=self._note.is_recorded_here,
                    may_shrink=self.meter.norm_is_of_gradients,
                )
            elif self._decision is not None:
                decision = self.gate.decide_further(self._decision, total)
        self._decision = decision
        self._note.num_meetings += 1
        names, report = ((), ()) if decision is None else decision.values()
        label = Label(note=self._note, chunk=chunk, report_names=names)
        values = torch.cat((total, *report)) if report else total
        self._send(label, values, is_meeting=True)

    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        """Measure the norm of what is applied, unless it is known of these very gradients."""
        self._note.norm_is_after_clip = not self.meter.norm_is_given
        fresh = self._skips.fresh_optimizers(optimizer)
        if self.meter.norm_is_given:
            self.meter.unscale_given_norm()
            if self.gate is None or all(map(self.gate.clip.are_unchanged, fresh)):
                return
        self.meter.give_squares(self.meter.gradients.squares(fresh))

    def _further_head(self, optimizer: Optimizer) -> torch.Tensor:
        head = self.meter.empty_head()
        if self.gate is not None:
            squares = self.meter.gradients.squares([optimizer])
            if squares is not None:
                head[HEAD.index("grad_squares")] = squares
        return head

    def _measure_slow(self) -> None:
        """Telemetry of some steps; it rides along with the meetings that follow."""
        every = self._config.telemetry_every
        if self._num_calls % every == 0 and self.is_watching:
            self._note.has_telemetry = self._slow.measure(self._note)
        self._num_calls += 1
        if self._num_calls % every == 0:
            self._slow.arm()

    def _close(self, state: StepState) -> None:
        """End the step and begin the next one."""
        note = self._note
        note.state, note.clock = state, time.time()
        if self.is_watching:
            if note.is_recorded_here and self.recorder is not None:
                with self.shields.host.guarding("note"):
                    self._fill(note)
            if state in (StepState.SKIPPED, StepState.OVERFLOW):
                with self.shields.numbers.guarding("measure"):
                    self._send_skipped(note)
        note.is_closed = True
        self.next_step += int(note.is_recorded_here)
        # Whether a loop skipped a step is partly a guess; these are not, and the same on all ranks.
        self._num_steps += int(bool(self._moved) or state is StepState.OVERFLOW)
        self.meter.reset()
        self._skips.end_step()
        self._moved.clear()
        self._decision = None
        self._note = StepNote(step=self.next_step)
        if self.gate is not None:
            self.gate.end_step(is_applied=state is StepState.APPLIED)
        if self._assembler is not None and not self.shields.host.is_down:
            with self.shields.host.guarding("release"):
                self._assembler.release()

    def _send_skipped(self, note: StepNote) -> None:
        """The numbers of a step without a meeting: those of this rank."""
        if self._assembler is None:
            return
        label = Label(note=note, chunk=None)
        numbers = (self.meter.head(0), self._slow.chunks.nothing)
        self._send(label, self.sync.sum(*numbers, is_alone=True), is_meeting=False)
        if self.recorder is not None:
            self.recorder.event("step not applied", note.step, {"why": note.state.value})

    def _fill(self, note: StepNote) -> None:
        """Put down what the host knows of the step."""
        for name, rate in main_learning_rate(self.optimizers).items():
            if isinstance(rate, torch.Tensor):
                self.user.add(name, rate)
            else:
                note.signals[name] = rate
        if self.loop is not None:
            note.data_position = self.loop.data_position
            note.signals |= self.loop.facts()
        with self.shields.user.guarding("note"):
            if note.state is StepState.APPLIED and not self.shields.user.is_down:
                self.note_loss_scale()  # a skipped step is closed after `scaler.update()`
            on_host, names, values = self.user.pop()
            note.signals = on_host | note.signals
            if values is not None and values.device.type != "meta":
                note.device_names, note.device_values = names, copy_to_host(values)

    def _send(self, label: Label, values: torch.Tensor, *, is_meeting: bool) -> None:
        if self.meter.device.type == "meta":
            return
        self._in_flight.send(label, values, is_meeting=is_meeting)
        for arrived in self._in_flight.arrivals():
            self._receive(*arrived)
        limit = self._config.max_nonfinite_steps
        if self._num_nonfinite >= limit and is_meeting:
            self._stop(limit)

    def _receive(self, label: Label, values: list[float], is_meeting: bool) -> None:
        """Numbers have arrived: see whether the ranks part, then deliver."""
        start = 1 + len(HEAD)
        end = start + self._slow.chunks.size
        head = dict(zip(HEAD, values[1:start], strict=True))
        report = dict(zip(label.report_names, values[end:], strict=True))
        if is_meeting and not self._is_draining:
            self._see(values[0], report, head)
        assembler = self._assembler
        if assembler is None or self.shields.host.is_down:
            return
        if self._is_closed and not self._is_draining:
            return
        with self.shields.host.guarding("deliver"):
            assembler.add_step(label.note, head, report)
            if label.chunk is not None:
                assembler.add_chunk(label.chunk, values[start:end])

    def _see(self, num_leaving: float, report: dict[str, float], head: dict[str, float]) -> None:
        """What all ranks read alike, and act upon at the same meeting."""
        had_parted = self.sync.has_parted
        self.sync.see(num_leaving)
        gate = self.gate
        if gate is not None and report and not gate.has_parted and report[VOTE] == OUT:
            gate.has_parted = True
            if not gate.shield.is_down and not num_leaving:
                self._report_failure("gate", "another rank", "see that rank's log")
        if not self.sync.has_parted and have_slipped(head):
            self.sync.has_parted = True
            log.warning(
                "trimtab: ranks are at different steps, because some of them skipped a step alone; "
                "trimtab stops on all of them"
            )
        if self.sync.has_parted and not had_parted:
            if not self._is_closed and not self.shields.numbers.is_down:
                self._report_failure("guard", "another rank", "it has failed or was closed")
            self._leave()
        norm = head["given_norm"] + head["grad_squares"]
        is_finite = math.isfinite(norm) and head["nan"] + head["inf"] == 0
        self._num_nonfinite = 0 if is_finite else self._num_nonfinite + 1

    def _stop(self, limit: int) -> None:
        self._num_nonfinite = -(2**31)  # once
        sentence = (
            f"{limit} steps in a row were not finite (the last is step {self._note.step}): the "
            "weights, a buffer or a carried state are broken; restart from a good checkpoint"
        )
        if self.gate is not None and not self.gate.has_parted:
            raise NonFiniteRun(sentence)
        log.warning("trimtab: %s", sentence)

    def _drain(self) -> None:
        """Deliver everything; what ranks would do about it does not matter any more."""
        if self._assembler is None:
            return
        self._is_draining = True
        for arrived in self._in_flight.drain():
            self._receive(*arrived)
        if self.sync.world == 1:
            chunk, riding = self._slow.chunks.pop()
            while chunk is not None:
                self._assembler.add_chunk(chunk, riding.tolist())
                chunk, riding = self._slow.chunks.pop()
        self._assembler.flush()
        self._is_draining = False

    def _leave(self) -> None:
        """All ranks have agreed: give everything back."""
        if self.gate is not None:
            self.gate.close()
        if self._is_closed:
            self._hooks.remove()
            _leaving.discard(self)

    def _refuse_backward(self) -> None:
        if self._is_in_backward:
            return
        self._is_in_backward = True
        log.warning(
            "trimtab: optimizer.step() runs inside backward, so there is no moment at which all "
            "gradients can be looked at: nothing is protected and only losses are recorded"
        )
        if self.gate is not None:
            self.gate.close()

    @property
    def _is_joining(self) -> bool:
        """Whether DDP's join is at work: then not all ranks come to every step."""
        return any(module._join_config.enable for module in self._parallel)

    def _report_failure(self, part: str, place: str, error: str) -> None:
        if self.recorder is not None:
            facts = {"part": part, "place": place, "error": error}
            self.recorder.event("trimtab failed", self.next_step, facts)
