"""StepSync: the numbers of a step are added up over ranks, and become records later.

    exchange   sums and the telemetry of the step before are added up over ranks, the gate decides
    arrivals   the numbers of `lag` exchanges ago, the same on every rank
    act_upon   ranks leave, a gate parts, the guard of the state hears what was found
    deliver    on the first rank `RecordAssembler` makes records of them

A step waits in the assembler until it is closed, the numbers of each of its optimizers are there
and, if it was measured, its telemetry came with the numbers of the next update. Records leave in
their order. A rank that failed keeps coming to the exchanges, with zeros and a vote to leave.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.config import LiveConfig
from trimtab.core.errors import NonFiniteRun, RunStopped
from trimtab.core.events import SLOW_RANK
from trimtab.core.text import counted
from trimtab.journal.exit_request import RunExit
from trimtab.live.arithmetic import Math, Scalar, Vector
from trimtab.live.host.no_recorder import NoRecorder
from trimtab.live.host.recorder import Recorder
from trimtab.live.loop.state_guard import StateGuard
from trimtab.live.measure.activations import read_activations, silent_sites
from trimtab.live.measure.by_rank import SlowRank, read_maxima
from trimtab.live.measure.state_hash import read_hashes
from trimtab.live.measure.step_meter import (
    STEP_SUMS,
    is_finite_step,
    ranks_out_of_step,
    read_step_sums,
)
from trimtab.live.measure.telemetry import TelemetrySampler, read_telemetry
from trimtab.live.protect.gate import Decision, Gate, NoGate
from trimtab.live.protect.gate_reporter import BAD_DATA, HARM, VOTE, GateReporter
from trimtab.live.ranks.exchange import DISCARD, OUT, ExchangeFailed, InFlight, RankSync, TrainStep
from trimtab.live.ranks.rank_group import RankGroup, host_of
from trimtab.live.shield import Shields, log

HOOKS_SILENT = (
    "trimtab: no activations of %s: call trimtab.watch before torch.compile, or "
    "torch._dynamo.reset() after it"
)

NO_ATTENTION = (
    "trimtab: no attention logits of %s (compiled, or an unknown kind); "
    "guard.record(max_attention_logit=...) takes yours"
)

MAX_PARTIAL = 20
"""Steps in a row that only some ranks have recorded before the log says so."""

RANK_IS_SLOW = (
    "trimtab: rank %d (%s) takes %.1f times as long as the others from an update to its next loss, "
    "and they wait for it"
)


class RecordAssembler:
    """Hands steps to the recorder, in their order; only on the first rank."""

    def __init__(self, recorder: Recorder | NoRecorder, slots: Sequence[str], world: int) -> None:
        self._recorder = recorder
        self._slots = slots
        self._world = world
        self._gate = GateReporter(recorder.event)
        self._waiting: deque[TrainStep] = deque()
        self._has_tested_hooks = False
        self._num_partial = 0
        self._slow_rank = SlowRank(world)

    def add(self, packet: "Packet") -> None:
        """Take the numbers of one exchange, or of a step that had none, and what came with them."""
        if packet.telemetry_of is not None:
            self.add_telemetry(packet.telemetry_of, packet.telemetry)
        self._add_step(packet)

    def _add_step(self, packet: "Packet") -> None:
        step, sums = packet.step, packet.step_sums
        if step not in self._waiting:
            self._waiting.append(step)
        step.arrive(read_step_sums(sums), is_recorded=sums["recorded"] > 0)
        self._count_ranks(sums["recorded"])
        is_reported = step.numbers.get(signals.DISCARDED) == 1.0
        if packet.report and not is_reported:
            number = self._recorder.number_of(step)
            step.numbers |= self._gate.report(number, step.numbers, packet.report)
        self.flush()

    def add_telemetry(self, step: TrainStep, values: Sequence[float]) -> None:
        """Take the sums of the telemetry of an earlier step."""
        for waiting in self._waiting:
            # Telemetry comes in the order of steps: what an earlier one still waits for was lost.
            if waiting is not step:
                waiting.arrive_telemetry({})
                continue
            sums = dict(zip(self._slots, values, strict=True))
            step.arrive_telemetry(self._read_telemetry(step, sums))
            break
        self.flush()

    def flush(self, *, everything: bool = False) -> None:
        """Give the recorder what is complete, or everything if nothing more will come."""
        while self._waiting and (everything or self._waiting[0].is_complete):
            step = self._waiting.popleft()
            if step.is_recorded:
                self._recorder.record(step, step.numbers)
            else:
                self._recorder.unrecorded(step)

    def _count_ranks(self, num_recorded: float) -> None:
        """Warn if for some time only some of the ranks have recorded a loss."""
        is_partial = 0 < num_recorded < self._world
        self._num_partial = self._num_partial + 1 if is_partial else 0
        if self._num_partial == MAX_PARTIAL:
            log.warning(
                "trimtab: only %d of %d ranks record a loss, so it is the mean of theirs; call "
                "guard.record on every rank that has one",
                num_recorded,
                self._world,
            )

    def _read_telemetry(self, step: TrainStep, sums: dict[str, float]) -> dict[str, float]:
        if not self._has_tested_hooks:
            self._has_tested_hooks = True
            if silent := silent_sites(sums, signals.ACTIVATION_RMS):
                log.warning(HOOKS_SILENT, counted(len(silent), "layer"))
            elif silent := silent_sites(sums, f"{signals.MAX_ATTENTION_LOGIT}/"):
                log.info(NO_ATTENTION, counted(len(silent), "layer"))
        found = read_telemetry(sums, self._world)
        if step.numbers.get(signals.DISCARDED) == 1.0:
            # Without an update, what was computed is the one before.
            updates = (signals.UPDATE_NORM, signals.LAYER_UPDATE_RATIO)
            found = {n: v for n, v in found.items() if not n.startswith(updates)}
        found |= read_hashes(sums, self._world) | read_activations(sums) | read_maxima(sums)
        if (slow := self._slow_rank.read(sums)) is not None:
            facts = {"rank": slow[0], "host": host_of(slow[0]), "times": round(slow[1], 1)}
            log.warning(RANK_IS_SLOW, *facts.values())
            self._recorder.event(SLOW_RANK, self._recorder.number_of(step), facts)
        return found


@dataclass(slots=True, kw_only=True)
class Packet:
    """The numbers of a step in one exchange; a step with two optimizers sends two.

    It leaves with the sums of this rank, and arrives with those of all ranks.
    """

    step: TrainStep
    sums: Vector
    """What this rank has measured, in the order of STEP_SUMS."""
    loss: Scalar | None = None
    """The loss of this rank alone; None if it is not known."""
    may_scale_down: bool = False
    """Whether the norm is that of the gradients, so that they may be scaled down by it."""
    is_exchange: bool = True
    """Whether the ranks add the numbers up; not for a step that skipped its update."""
    telemetry_of: TrainStep | None = None
    """The step whose telemetry is in it."""
    report_names: tuple[str, ...] = ()
    check: Any = None
    """What the guard of the state must know when its findings come back."""
    num_leaving: float = 0.0
    """Ranks that leave; from here on what has arrived, the same on every rank."""
    step_sums: dict[str, float] = field(default_factory=dict)
    state: list[float] = field(default_factory=list)
    """Findings about the trained state, in the order of its guard."""
    telemetry: list[float] = field(default_factory=list)
    report: dict[str, float] = field(default_factory=dict)
    """Values that the gate reports, by name."""

    def unpack(self, values: list[float], *, num_state: int, num_telemetry: int) -> None:
        """Split the vector that arrived: leaving, step sums, state, telemetry, gate report."""
        state = 1 + len(STEP_SUMS)
        telemetry = state + (num_state if self.is_exchange else 0)
        report = telemetry + (0 if self.telemetry_of is None else num_telemetry)
        self.num_leaving = values[0]
        self.step_sums = dict(zip(STEP_SUMS, values[1:state], strict=True))
        self.state, self.telemetry = values[state:telemetry], values[telemetry:report]
        self.report = dict(zip(self.report_names, values[report:], strict=True))
        if self.report and self.state:
            self.report[HARM] = self.state[-1]
        if self.report and self.step.has_bad_data:
            self.report[BAD_DATA] = 1.0


class StepSync:
    """Takes every update over the ranks and to the host."""

    def __init__(
        self,
        sampler: TelemetrySampler,
        gate: Gate | NoGate,
        recorder: Recorder | NoRecorder,
        shields: Shields,
        config: LiveConfig,
        device: torch.device,
        arithmetic: Math,
        *,
        on_leave: Callable[[], None],
        on_failure: Callable[[str, str, str], None],
    ) -> None:
        self.recorder = recorder
        """What journals; only the first rank's does."""
        self._state_guard = StateGuard()
        self._sampler = sampler
        self._gate = gate
        self._shields = shields
        self._config = config
        self._device = device
        self._math = arithmetic
        self._on_leave = on_leave
        self._on_failure = on_failure
        self._in_flight = InFlight(config.lag_steps)
        self._num_nonfinite, self._nonfinite_step = 0, -1
        self._last_decision: Decision | None = None
        """The decision of the last exchange."""
        self._has_restored = False
        """Whether the state was restored at the last exchange."""
        self.num_exchanges = 0
        """Updates so far, with those of steps that were done again."""
        self.connect(RankGroup(slots=sampler.slots))

    def connect(self, group: RankGroup) -> None:
        """Exchange with these ranks, or with none, from here on."""
        slots = self._sampler.connect(group)
        self.ranks = RankSync(
            group,
            self._device,
            self._math,
            lag=self._config.lag_steps,
            num_values=len(STEP_SUMS) + self._state_guard.num_fields + len(slots),
            votes=self._gate.is_voting,
        )
        if group.rank > 0 and self.recorder.is_recording:
            self.recorder.close(f"rank {group.rank} has joined; the first rank journals")
            self.recorder = NoRecorder()
        self._assembler = RecordAssembler(self.recorder, slots, group.world)

    def add_state_guard(self, state_guard: StateGuard) -> None:
        """Let it send its findings with every exchange; before the first one."""
        self._state_guard = state_guard
        self.connect(self.ranks.group)

    def note_restore(self) -> None:
        """The state was restored instead of the update that was just exchanged."""
        self._has_restored = True

    def exchange(self, packet: Packet, optimizer: Optimizer, *, is_alone: bool) -> None:
        """Add up one update over ranks, let the gate decide, and send the numbers to the host.

        Raises RunStopped if the ranks cannot exchange and this step is bad by the numbers of this
        rank.
        """
        self.num_exchanges += 1
        telemetry_of, telemetry = self._pop_telemetry()
        check, found = self._findings(optimizer)
        parts = [packet.sums, *found]
        if telemetry_of is not None or self.ranks.world > 1:  # else zeros that nobody reads
            parts.append(telemetry)
        try:
            total = self.ranks.sum(*parts, is_alone=is_alone)
            if not is_alone:
                self._decide(packet, total)
        except ExchangeFailed as error:
            self._decide_nothing(packet, error)
            if not self.ranks.has_left:  # it is alone from here on
                self.exchange(packet, optimizer, is_alone=is_alone)
            return
        if telemetry_of is None:  # zeros, that the host need not see
            total = total[: 1 + len(STEP_SUMS) + self._state_guard.num_fields]
        elif self.ranks.world > 1:
            with self._shields.telemetry.guarding("exchange"):
                self._sampler.learn(torch.tensor(total) if self._math.is_host else total)
        self._last_decision = decision = self._gate.decision
        self._has_restored = False
        packet.step.num_exchanges += 1
        packet.telemetry_of, packet.check = telemetry_of, check
        if decision is not None:
            packet.report_names = decision.report_names
            total = self._joined(total, self._math.vector(decision.report))
        self._send(packet, total)

    def arrivals(self) -> Iterator[Packet]:
        """Yield what was sent `lag` exchanges ago: the same on every rank."""
        return map(self._unpack, self._in_flight.arrivals())

    def send_skipped(self, step: TrainStep, sums: Vector) -> None:
        """Send the numbers of a step without an exchange: those of this rank."""
        if self.recorder.is_recording:
            packet = Packet(step=step, sums=sums, is_exchange=False)
            self._send(packet, self._joined(self._math.vector((self._math.zero,)), sums))
            self.recorder.event("step not applied", step.step, {"why": step.state.value})

    def flush(self) -> None:
        if self.recorder.is_recording and not self._shields.host.is_down:
            self._shields.host.call("release", self._assembler.flush)

    def drain(self) -> None:
        """Record everything; what ranks would do about it does not matter any more."""
        for packet in map(self._unpack, self._in_flight.drain()):
            self.deliver(packet)
        if self.ranks.world == 1:
            telemetry_of, telemetry = self._sampler.pop()
            if telemetry_of is not None:
                self._assembler.add_telemetry(telemetry_of, telemetry.tolist())
        self._assembler.flush(everything=True)

    def _pop_telemetry(self) -> tuple[TrainStep | None, torch.Tensor]:
        return self._shields.telemetry.call("exchange", self._sampler.pop) or (
            None,
            self._sampler.nothing,
        )

    def _findings(self, optimizer: Optimizer) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Return what the guard of the state must know later, and what it has found."""
        guard = self._state_guard
        return self._shields.recovery.call("exchange", guard.to_send, optimizer) or (
            None,
            guard.unable,
        )

    def _joined(self, vector: Vector, further: Vector) -> Vector:
        return vector + further if self._math.is_host else torch.cat((vector, further))

    def _decide(self, packet: Packet, total: Vector) -> None:
        step, gate = packet.step, self._gate
        if gate.has_left:
            if self.ranks.world > 1:
                self.ranks.accept()
        elif step.num_exchanges == 0:
            is_unable = self._shields.recovery.is_down
            gate.decide(
                self.ranks,
                total,
                packet.loss,
                is_recorded=step.is_recorded_here,
                may_scale_down=packet.may_scale_down,
                has_bad_data=step.has_bad_data,
                harm=None if is_unable else self._state_guard.harm,
            )
        else:
            gate.decide_further(self.ranks, total)

    def _decide_nothing(self, packet: Packet, error: ExchangeFailed) -> None:
        """Go on without the other ranks, or end the run if its step is bad.

        What the others know of this step, and do about it, is not known. An ordinary step is
        applied, as without trimtab. A bad one can be neither applied nor discarded by one rank. And
        if the step before was not applied as it was, the exchange may have failed on another rank
        then, which applied it.
        """
        ranks, number = self.ranks, packet.step.step
        last, self._last_decision = self._last_decision, None
        is_bad = self._gate.is_bad(packet.sums, ranks.world)
        is_doubtful = self._has_restored or (last is not None and last.is_act())
        self._on_leave()
        if is_bad or is_doubtful:
            step = number if is_bad else number - 1
            raise RunStopped(
                f"the ranks could not exchange ({error}), and step {step} is a bad one: what the "
                "others did with it is not known; restart from the last checkpoint",
                RunExit.RELAUNCH,
            )
        if not ranks.is_starting or not ranks.group.is_replicated:
            log.error(
                "trimtab: ranks could not exchange (%s); this rank continues without trimtab", error
            )
        elif self.recorder.is_recording:
            log.warning(
                "trimtab: step %d: another rank did not come (%s); ranks that step unequally often "
                "share no numbers: the first one is recorded alone, and nothing is protected",
                number,
                error,
            )
            for arrived in map(self._unpack, self._in_flight.drain()):
                self.deliver(arrived)
            self.connect(RankGroup(slots=self._sampler.slots))

    def _send(self, packet: Packet, values: Vector) -> None:
        if self._device.type != "meta":  # there are only shapes
            self._in_flight.send(packet, values, is_exchange=packet.is_exchange)

    def _unpack(self, arrived: tuple[Packet, list[float]]) -> Packet:
        packet, values = arrived
        num_state, num_telemetry = self._state_guard.num_fields, len(self._sampler.nothing)
        packet.unpack(values, num_state=num_state, num_telemetry=num_telemetry)
        return packet

    def deliver(self, packet: Packet) -> None:
        """Hand numbers to the assembler, on the rank that records."""
        if self.recorder.is_recording and not self._shields.host.is_down:
            self._shields.host.call("deliver", self._assembler.add, packet)

    def act_upon(self, packet: Packet) -> None:
        """Act upon what all ranks read alike, at the same exchange."""
        if not packet.is_exchange:
            return
        ranks, gate, sums = self.ranks, self._gate, packet.step_sums
        had_left = ranks.has_left
        ranks.leave_if_any(packet.num_leaving)
        if not gate.has_left and packet.report.get(VOTE) == OUT:
            gate.has_left = True
            if not self._shields.gate.is_down and not packet.num_leaving:
                self._on_failure("gate", "another rank", "see that rank's log")
        if not ranks.has_left and ranks_out_of_step(sums):
            ranks.has_left = True
            log.warning(
                "trimtab: ranks are at different steps, because some of them skipped a step alone; "
                "trimtab stops on all of them"
            )
        if ranks.has_left and not had_left:
            log.warning(
                "trimtab: another rank failed or closed its guard; trimtab stops on all ranks, "
                "training continues"
            )
            self._on_failure("guard", "another rank", "it has failed or was closed")
            self._on_leave()
        if packet.telemetry_of is not None:
            with self._shields.telemetry.guarding("arrival"):
                self._sampler.receive(packet.telemetry_of, packet.telemetry)
        is_finite = is_finite_step(sums)
        # Two optimizers make two exchanges in a step.
        step = packet.step.step
        is_new = step != self._nonfinite_step
        self._num_nonfinite = 0 if is_finite else self._num_nonfinite + is_new
        self._nonfinite_step = -1 if is_finite else step
        if packet.check is not None and not ranks.has_left:
            with self._shields.recovery.guarding("arrival"):
                was_discarded = packet.report.get(VOTE) == DISCARD
                loss = None if was_discarded else read_step_sums(sums).get(signals.LOSS)
                self._state_guard.receive(
                    packet.check, packet.state, is_finite=is_finite, loss=loss
                )

    @property
    def trains(self) -> bool:
        """Whether loss and gradients were finite, on all ranks, when they were known last."""
        return self.num_exchanges > 0 and self._num_nonfinite == 0

    def stop_if_stuck(self, step: int) -> None:
        """Raise NonFiniteRun if too many steps in a row were not finite; every rank comes here at
        the same exchange."""
        if self._num_nonfinite <= self._config.max_nonfinite_steps:
            return
        sentence = f"{self._num_nonfinite} steps in a row were not finite, up to step {step}"
        self._num_nonfinite = -(2**31)  # once
        if not self._gate.has_left:
            raise NonFiniteRun(
                f"{sentence}: all were discarded, so the run learns nothing; look for the first "
                "module that is not finite, or continue from an older checkpoint"
            )
        log.warning("trimtab: %s: continue from a checkpoint before them", sentence)
