"""StepSync: the numbers of a step meet those of the other ranks, and become records later.

    meet       head and the telemetry of the step before are added up over ranks, the gate decides
    in flight  for `lag` meetings
    receive    the same numbers on every rank: ranks part, a broken run stops; the first rank
               assembles records

A rank that failed keeps coming to the meetings, with zeros and a vote to leave.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trimtab.core import signals
from trimtab.core.config import LiveConfig
from trimtab.core.errors import NonFiniteRun, RestoreError
from trimtab.live.host.in_flight import InFlight
from trimtab.live.host.record_assembler import RecordAssembler
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.host.step_note import StepNote
from trimtab.live.measure.slow_meter import SlowMeter
from trimtab.live.measure.step_meter import HEAD, have_slipped
from trimtab.live.protect.gate import Decision, Gate
from trimtab.live.protect.gate_reporter import VOTE
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.ranks.rank_sync import RankSync
from trimtab.live.ranks.rank_vote import OUT, value_and_rank
from trimtab.live.recover.rank_orders import FIELDS, NAMES, RankOrders, to_digits
from trimtab.live.shield import Shields, log

_NUM_SUMS = 1 + len(HEAD)
"""Numbers of every meeting: how many ranks leave, and the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is needed to understand the numbers of a meeting when they arrive."""

    note: StepNote
    telemetry_of: StepNote | None = None
    """The step whose telemetry is in them."""
    report_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What this rank brings to a meeting."""

    head: torch.Tensor
    loss: torch.Tensor | None
    """Of this rank alone; None if it failed."""
    may_shrink: bool = False
    """Whether the norm is that of the gradients, so that they may be scaled down by it."""


Sink = Callable[[StepNote, dict[str, float], dict[str, float]], None]
"""Takes note, sums and the gate's report of a step that is done again for an experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Muted:
    """What a run puts aside while steps are done again for an experiment."""

    recorder: RunRecorder | None
    assembler: RecordAssembler | None
    in_flight: InFlight
    num_nonfinite: int
    sink: Sink


class StepSync:
    """Takes every update over the ranks and to the host."""

    def __init__(
        self,
        slow: SlowMeter,
        gate: Gate | None,
        recorder: RunRecorder | None,
        shields: Shields,
        config: LiveConfig,
        device: torch.device,
        *,
        join: Callable[[], RankGroup | None],
        on_part: Callable[[], None],
        on_failure: Callable[[str, str, str], None],
    ) -> None:
        self.recorder = recorder
        """Only the first rank has one."""
        self.is_closed = False
        self.orders: RankOrders | None = None
        """What the first rank orders; only in a run that can go back."""
        self._slow = slow
        self._gate = gate
        self._shields = shields
        self._config = config
        self._device = device
        self._join = join
        self._on_part = on_part
        self._on_failure = on_failure
        self._in_flight = InFlight(config.lag_steps)
        self._assembler: RecordAssembler | None = None
        self._num_nonfinite = 0
        self._is_draining = False
        self._unseen: deque[tuple[float, dict[str, float], dict[str, float]]] = deque()
        """What arrived early because this rank was closed: the others see it at later meetings."""
        self._muted: _Muted | None = None
        self.num_meetings = 0
        """Updates so far, with those of steps that were done again."""
        self.ranks = RankSync(RankGroup(), device)
        self.connect(first=True)

    @property
    def is_measuring(self) -> bool:
        """Whether anything is still measured here."""
        return not (self.is_closed or self._shields.numbers.is_down or self.ranks.has_parted)

    @property
    def is_muted(self) -> bool:
        """Whether steps are done again for an experiment: nothing of them is journalled."""
        return self._muted is not None

    def mute(self, sink: Sink) -> None:
        """From now on numbers go to `sink` at once; what is on its way stays there."""
        self._muted = _Muted(
            recorder=self.recorder,
            assembler=self._assembler,
            in_flight=self._in_flight,
            num_nonfinite=self._num_nonfinite,
            sink=sink,
        )
        self.recorder = self._assembler = None
        self._in_flight = InFlight(0)

    def unmute(self) -> None:
        """Go on as if nothing had been done again."""
        muted, self._muted = self._muted, None
        if muted is not None:
            self.recorder, self._assembler = muted.recorder, muted.assembler
            self._in_flight, self._num_nonfinite = muted.in_flight, muted.num_nonfinite

    def connect(self, *, first: bool) -> None:
        """Find the other ranks; asked again at the first update if there were none."""
        group = self._join()
        if group is None:
            group = RankGroup(slots=self._slow.slots) if first else None
        if group is None:
            return
        if not first and group.rank > 0 and self.recorder is not None:
            self.recorder.close(f"rank {group.rank} has joined; the first rank journals")
            self.recorder = self._assembler = None
        self.ranks = RankSync(group, self._device)
        self._slow.connect(group.slots)
        if self.recorder is not None:
            self._assembler = RecordAssembler(self.recorder, group.slots, group.world)

    def meet(
        self, note: StepNote, measured: Measured, earlier: Decision | None, *, is_alone: bool
    ) -> Decision | None:
        """Meet for one update; `earlier` is the decision about the step's first optimizer."""
        self.num_meetings += 1
        ranks, gate = self.ranks, self._gate
        ranks.extra = None if self.orders is None else self.orders.to_send(ranks.group.rank)
        telemetry_of, telemetry = (None, self._slow.nothing) if self.is_muted else self._slow.pop()
        total = ranks.sum(measured.head, telemetry, is_alone=is_alone)
        if telemetry_of is None:  # zeros, that the host need not see
            total = total[:_NUM_SUMS]
        decision = None
        if gate is not None and not gate.has_parted and not is_alone:
            if note.num_meetings == 0:
                decision = gate.decide(
                    ranks,
                    total,
                    measured.loss,
                    is_recorded=note.is_recorded_here,
                    may_shrink=measured.may_shrink,
                )
            elif earlier is not None:
                decision = gate.decide_further(earlier, total)
        names, report = ((), ()) if decision is None else decision.values()
        has_voted = decision is not None and note.num_meetings == 0
        if has_voted and ranks.extra is not None and ranks.agreed is not None:
            whole, rest = ranks.agreed[: len(FIELDS)], ranks.agreed[len(FIELDS) :]
            names, report = (*names, *NAMES), (*report, to_digits(whole))
            if len(rest):
                names += (signals.MAX_RANK_GRAD, signals.MAX_GRAD_RANK)
                report += (value_and_rank(rest),)
        note.num_meetings += 1
        label = Label(note=note, telemetry_of=telemetry_of, report_names=names)
        with self._shields.numbers.guarding("arrivals"):
            self._send(label, torch.cat((total, *report)) if report else total, is_meeting=True)
        if self.orders is not None and self.orders.problem is not None:
            raise RestoreError(self.orders.problem)
        if self._num_nonfinite >= self._config.max_nonfinite_steps:
            self._stop(note)
        return decision

    def send_skipped(self, note: StepNote, head: torch.Tensor) -> None:
        """Send the numbers of a step without a meeting: those of this rank."""
        if self._muted is not None:  # with several ranks the numbers would be of this one alone
            alone = self.ranks.world == 1 and head.device.type != "meta"
            found = dict(zip(HEAD, head.tolist(), strict=True)) if alone else {}
            self._muted.sink(note, found, {})
        if self._assembler is not None and self.recorder is not None:
            self._send(Label(note=note), self.ranks.sum(head, is_alone=True), is_meeting=False)
            self.recorder.event("step not applied", note.step, {"why": note.state.value})

    def release(self) -> None:
        """A step was closed: hand over what is complete."""
        if self._assembler is not None and not self._shields.host.is_down:
            with self._shields.host.guarding("release"):
                self._assembler.hand_over()

    def settle(self) -> None:
        """Deliver everything before the run goes back; all ranks come here at one boundary."""
        for arrived in self._in_flight.drain():
            self._receive(*arrived)
        if self.ranks.has_parted:
            return
        telemetry_of, telemetry = self._slow.pop()
        total = self.ranks.sum(telemetry)
        self._num_nonfinite = 0
        if self._assembler is not None and not self._shields.host.is_down:
            with self._shields.host.guarding("settle"):
                if telemetry_of is not None and self._device.type != "meta":
                    self._assembler.add_telemetry(telemetry_of, total[1:].tolist())
                self._assembler.hand_over(everything=True)

    def drain(self) -> None:
        """Deliver everything; what ranks would do about it does not matter any more."""
        if self._assembler is None:
            return
        self._is_draining = True
        for arrived in self._in_flight.drain():
            self._receive(*arrived)
        if self.ranks.world == 1:
            telemetry_of, telemetry = self._slow.pop()
            if telemetry_of is not None:
                self._assembler.add_telemetry(telemetry_of, telemetry.tolist())
        self._assembler.hand_over(everything=True)
        self._is_draining = False

    def _send(self, label: Label, values: torch.Tensor, *, is_meeting: bool) -> None:
        if self._device.type == "meta":  # there are only shapes
            return
        self._in_flight.send(label, values, is_meeting=is_meeting)
        if is_meeting and self._unseen:
            self._see(*self._unseen.popleft())
        for arrived in self._in_flight.arrivals():
            self._receive(*arrived)

    def _receive(self, label: Label, values: list[float], is_meeting: bool) -> None:
        """Numbers have arrived: see whether the ranks part, then deliver."""
        end = _NUM_SUMS + (0 if label.telemetry_of is None else len(self._slow.nothing))
        head = dict(zip(HEAD, values[1:_NUM_SUMS], strict=True))
        report = dict(zip(label.report_names, values[end:], strict=True))
        if self._muted is not None:
            self.ranks.see(values[0])
            self._muted.sink(label.note, head, report)
            return
        if is_meeting and self._is_draining:
            self._unseen.append((values[0], report, head))
        elif is_meeting:
            self._see(values[0], report, head)
        if self._assembler is None or self._shields.host.is_down:
            return
        if self.is_closed and not self._is_draining:
            return
        with self._shields.host.guarding("deliver"):
            if label.telemetry_of is not None:
                self._assembler.add_telemetry(label.telemetry_of, values[_NUM_SUMS:end])
            self._assembler.add_step(label.note, head, report)

    def _see(self, num_leaving: float, report: dict[str, float], head: dict[str, float]) -> None:
        """What all ranks read alike, and act upon at the same meeting."""
        ranks, gate = self.ranks, self._gate
        had_parted = ranks.has_parted
        ranks.see(num_leaving)
        if gate is not None and report and not gate.has_parted and report[VOTE] == OUT:
            gate.has_parted = True
            if not gate.shield.is_down and not num_leaving:
                self._on_failure("gate", "another rank", "see that rank's log")
        if not ranks.has_parted and have_slipped(head):
            ranks.has_parted = True
            log.warning(
                "trimtab: ranks are at different steps, because some of them skipped a step alone; "
                "trimtab stops on all of them"
            )
        if ranks.has_parted and not had_parted:
            if not self.is_closed and not self._shields.numbers.is_down:
                log.warning("trimtab: another rank has failed or closed its guard: all of them end")
                self._on_failure("guard", "another rank", "it has failed or was closed")
            self._on_part()
        if self.orders is not None and NAMES[0] in report:
            self.orders.read(report)
        norm = head["given_norm"] + head["grad_squares"]
        is_finite = math.isfinite(norm) and head["nan"] + head["inf"] == 0
        self._num_nonfinite = 0 if is_finite else self._num_nonfinite + 1

    def _stop(self, note: StepNote) -> None:
        """Too many steps in a row were not finite; every rank comes here at the same meeting."""
        sentence = (
            f"{self._num_nonfinite} steps in a row were not finite, up to step {note.step}: the "
            "weights, a buffer or a carried state are broken; restart from a good checkpoint"
        )
        self._num_nonfinite = -(2**31)  # once
        if self._gate is not None and not self._gate.has_parted:
            raise NonFiniteRun(sentence)
        log.warning("trimtab: %s", sentence)
