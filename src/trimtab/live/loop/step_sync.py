"""StepSync: the numbers of a step are added up over ranks, and become records later.

    exchange   head and the telemetry of the step before are added up over ranks, the gate decides
    in flight  for `lag` exchanges
    receive    the same numbers on every rank: ranks leave, a broken run stops; on the first rank
               `RecordAssembler` makes records of them

A step waits in the assembler until it is closed, the numbers of each of its optimizers are there
and, if it was measured, its telemetry came with the numbers of the next update. Records leave in
their order. A rank that failed keeps coming to the exchanges, with zeros and a vote to leave.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.config import LiveConfig
from trimtab.core.errors import NonFiniteRun, RunStopped
from trimtab.core.events import SLOW_RANK
from trimtab.core.text import counted
from trimtab.journal.exit_request import RunExit
from trimtab.live.host.recorder import Recorder
from trimtab.live.measure.activations import read_activations, silent_sites
from trimtab.live.measure.by_rank import SlowRank, read_maxima
from trimtab.live.measure.state_hash import read_hashes
from trimtab.live.measure.step_meter import HEAD, have_slipped, is_finite_step, read_head
from trimtab.live.measure.telemetry import SlowMeter, read_telemetry
from trimtab.live.protect.gate import Decision, Gate
from trimtab.live.protect.gate_reporter import BAD_DATA, HARM, VOTE, GateReporter
from trimtab.live.ranks.exchange import OUT, ExchangeFailed, InFlight, RankSync, StepNote
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


@dataclass(slots=True)
class _Waiting:
    """A step whose record does not leave yet."""

    note: StepNote
    found: dict[str, float]
    num_arrived: int = 0
    is_recorded: bool = False
    has_telemetry: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing more comes."""
        note = self.note
        return (
            note.is_closed
            and self.num_arrived >= note.num_exchanges
            and self.has_telemetry >= note.has_telemetry
        )


class RecordAssembler:
    """Hands the records of steps to the recorder, in their order; only on the first rank."""

    def __init__(self, recorder: Recorder, slots: Sequence[str], world: int) -> None:
        self._recorder = recorder
        self._slots = slots
        self._world = world
        self._gate = GateReporter(recorder)
        self._waiting: deque[_Waiting] = deque()
        self._has_tested_hooks = False
        self._num_partial = 0
        self._slow_rank = SlowRank(world)

    def add_step(
        self, note: StepNote, head: Mapping[str, float], report: Mapping[str, float]
    ) -> None:
        """Take the sums of one exchange, or of a step that had none; `report` is the gate's."""
        step = next((step for step in self._waiting if step.note is note), None)
        if step is None:
            step = _Waiting(note, read_head(head))
            self._waiting.append(step)
        step.num_arrived += 1
        step.is_recorded = step.is_recorded or head["recorded"] > 0
        self._count_ranks(head["recorded"])
        if report and step.found.get(signals.DISCARDED) != 1.0:  # else it is reported already
            step.found |= self._gate.report(self._recorder.number_of(note), step.found, report)
        self.hand_over()

    def add_telemetry(self, note: StepNote, values: Sequence[float]) -> None:
        """Take the sums of the telemetry of an earlier step."""
        sums = dict(zip(self._slots, values, strict=True))
        for step in self._waiting:
            # Telemetry comes in the order of steps: what an earlier one still waits for was lost.
            step.has_telemetry = True
            if step.note is note:
                self._add_telemetry(step, sums)
                break
        self.hand_over()

    def hand_over(self, *, everything: bool = False) -> None:
        """Give the recorder what is complete, or everything if nothing more will come."""
        while self._waiting and (everything or self._waiting[0].is_complete):
            step = self._waiting.popleft()
            if step.is_recorded:
                self._recorder.record(step.note, step.found)
            else:
                self._recorder.unrecorded(step.note)

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

    def _add_telemetry(self, step: _Waiting, sums: dict[str, float]) -> None:
        if not self._has_tested_hooks:
            self._has_tested_hooks = True
            if silent := silent_sites(sums, signals.ACTIVATION_RMS):
                log.warning(HOOKS_SILENT, counted(len(silent), "layer"))
            elif silent := silent_sites(sums, f"{signals.MAX_ATTENTION_LOGIT}/"):
                log.info(NO_ATTENTION, counted(len(silent), "layer"))
        found = read_telemetry(sums, self._world)
        if step.found.get(signals.DISCARDED) == 1.0:
            # Without an update, what was computed is the one before.
            updates = (signals.UPDATE_NORM, signals.LAYER_UPDATE_RATIO)
            found = {n: v for n, v in found.items() if not n.startswith(updates)}
        step.found |= found | read_hashes(sums, self._world) | read_activations(sums)
        step.found |= read_maxima(sums)
        if (slow := self._slow_rank.read(sums)) is not None:
            facts = {"rank": slow[0], "host": host_of(slow[0]), "times": round(slow[1], 1)}
            log.warning(RANK_IS_SLOW, *facts.values())
            self._recorder.event(SLOW_RANK, self._recorder.number_of(step.note), facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is needed to understand the numbers of an exchange when they arrive."""

    note: StepNote
    is_exchange: bool = True
    """Whether the ranks have added the numbers up; not for a step that skipped its update."""
    telemetry_of: StepNote | None = None
    """The step whose telemetry is in them."""
    report_names: tuple[str, ...] = ()
    sent: Any = None
    """What the keeper of the state must know when its numbers come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What this rank brings to an exchange."""

    head: torch.Tensor
    loss: torch.Tensor | None
    """Of this rank alone; None if it failed."""
    may_shrink: bool = False
    """Whether the norm is that of the gradients, so that they may be scaled down by it."""


class StateKeeper(Protocol):
    """What watches over the trained state, and restores it; only in a run that recovers."""

    num_fields: int
    """Numbers that it adds to every exchange."""
    harm: torch.Tensor
    """1 while this rank's state waits for an undo."""
    unable: torch.Tensor
    """What a rank sends that has failed: no rank undoes anything then."""

    def to_send(self, optimizer: Optimizer) -> tuple[Any, torch.Tensor]:
        """Return what this rank has found, and what must be known when it comes back."""
        ...

    def receive(self, sent: Any, values: Sequence[float], *, is_finite: bool) -> None:
        """Take what all ranks have found, `lag` exchanges later."""
        ...

    def restores(self, optimizer: Optimizer) -> bool:
        """Restore the state if that is due; then the step is not to be taken."""
        ...

    def after_update(self, optimizer: Optimizer) -> None:
        """Audit and copy the state after an update, if that is due."""
        ...

    def request(self, updates: int) -> None:
        """Undo at least so many updates, because a person asks for it."""
        ...

    def remember(self, batch: Any) -> None:
        """Keep a copy of a batch of this step, for experiments."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Numbers of one step, identical on every rank if it was an exchange."""

    label: Label
    num_leaving: float
    head: dict[str, float]
    state: list[float]
    """Findings about the trained state, in the order of its keeper."""
    telemetry: list[float]
    report: dict[str, float]
    """Values that the gate reports, by name."""


def unpack(label: Label, values: list[float], *, num_state: int, num_telemetry: int) -> Arrival:
    """Split one vector: ranks that leave, head, state, telemetry, report of the gate."""
    queue = iter(values)

    def take(count: int) -> list[float]:
        return list(islice(queue, count))

    num_leaving = next(queue)
    head = dict(zip(HEAD, take(len(HEAD)), strict=True))
    state = take(num_state if label.is_exchange else 0)
    telemetry = take(0 if label.telemetry_of is None else num_telemetry)
    report = dict(zip(label.report_names, queue, strict=True))
    if report and state:
        report[HARM] = state[-1]
    if report and label.note.has_bad_data:
        report[BAD_DATA] = 1.0
    return Arrival(
        label=label,
        num_leaving=num_leaving,
        head=head,
        state=state,
        telemetry=telemetry,
        report=report,
    )


class StepSync:
    """Takes every update over the ranks and to the host."""

    def __init__(
        self,
        slow: SlowMeter,
        gate: Gate | None,
        recorder: Recorder | None,
        shields: Shields,
        config: LiveConfig,
        device: torch.device,
        *,
        keeper: StateKeeper | None,
        join: Callable[[], RankGroup | None],
        on_leave: Callable[[], None],
        on_failure: Callable[[str, str, str], None],
    ) -> None:
        self.recorder = recorder
        """Only the first rank has one."""
        self.is_closed = False
        self._keeper = keeper
        self._slow = slow
        self._gate = gate
        self._shields = shields
        self._config = config
        self._device = device
        self._join = join
        self._on_leave = on_leave
        self._on_failure = on_failure
        self._in_flight = InFlight(config.lag_steps)
        self._assembler: RecordAssembler | None = None
        self._num_nonfinite, self._nonfinite_step = 0, -1
        self._last_decision: Decision | None = None
        """The decision of the last exchange."""
        self.has_restored = False
        """Whether the state was restored at the last exchange."""
        self.num_exchanges = 0
        """Updates so far, with those of steps that were done again."""
        self._connect_to(RankGroup(slots=slow.slots))
        self.connect()

    @property
    def is_measuring(self) -> bool:
        return not (self.is_closed or self._shields.numbers.is_down or self.ranks.has_left)

    def connect(self) -> None:
        """Find the other ranks; asked again at the first update if there were none."""
        group = self._join()
        if group is None:
            return
        if group.rank > 0 and self.recorder is not None:
            self.recorder.close(f"rank {group.rank} has joined; the first rank journals")
            self.recorder = self._assembler = None
        self._connect_to(group)

    def _connect_to(self, group: RankGroup) -> None:
        slots = self._slow.connect(group)
        self.ranks = RankSync(
            group,
            self._device,
            lag=self._config.lag_steps,
            num_values=len(HEAD) + self._num_state + len(slots),
            votes=self._gate is not None,
        )
        if self.recorder is not None:
            self._assembler = RecordAssembler(self.recorder, slots, group.world)

    def exchange(
        self, note: StepNote, optimizer: Optimizer, measured: Measured, *, is_alone: bool
    ) -> None:
        """Add up one update over ranks, and let the gate decide.

        Numbers of earlier updates arrive. Raises RunStopped if the ranks cannot exchange and this
        step is bad by the numbers of this rank.
        """
        self.num_exchanges += 1
        telemetry_of, telemetry = self._pop_telemetry()
        sent, found = self._findings(optimizer)
        try:
            total = self.ranks.sum(measured.head, *found, telemetry, is_alone=is_alone)
            if self._gate is not None and not is_alone:
                self._decide(self._gate, note, measured, total)
        except ExchangeFailed as error:
            self._decide_nothing(note, measured, error)
            if not self.ranks.has_left:  # it is alone from here on
                self.exchange(note, optimizer, measured, is_alone=is_alone)
            return
        if telemetry_of is None:  # zeros, that the host need not see
            total = total[: 1 + len(HEAD) + self._num_state]
        else:
            with self._shields.telemetry.guarding("exchange"):
                self._slow.learn(total)
        self._last_decision = decision = None if self._gate is None else self._gate.decision
        self.has_restored = False
        names, report = ((), ()) if decision is None else decision.values()
        note.num_exchanges += 1
        label = Label(note=note, telemetry_of=telemetry_of, report_names=names, sent=sent)
        self._send(label, torch.cat((total, *report)) if report else total)
        for arrived in self._in_flight.arrivals():
            arrival = self._unpack(*arrived)
            self._act_upon(arrival)
            self._record(arrival)
        if self._num_nonfinite > self._config.max_nonfinite_steps:
            self._stop(note)

    def send_skipped(self, note: StepNote, head: torch.Tensor) -> None:
        """Send the numbers of a step without an exchange: those of this rank."""
        if self._assembler is not None and self.recorder is not None:
            label = Label(note=note, is_exchange=False)
            self._send(label, torch.cat((head.new_zeros(1), head)))
            self.recorder.event("step not applied", note.step, {"why": note.state.value})

    def release(self) -> None:
        """Hand over what is complete, when a step was closed."""
        if self._assembler is not None and not self._shields.host.is_down:
            with self._shields.host.guarding("release"):
                self._assembler.hand_over()

    def drain(self) -> None:
        """Record everything; what ranks would do about it does not matter any more."""
        if self._assembler is None:
            return
        for arrived in self._in_flight.drain():
            self._record(self._unpack(*arrived))
        if self.ranks.world == 1:
            telemetry_of, telemetry = self._slow.pop()
            if telemetry_of is not None:
                self._assembler.add_telemetry(telemetry_of, telemetry.tolist())
        self._assembler.hand_over(everything=True)

    @property
    def _num_state(self) -> int:
        return 0 if self._keeper is None else self._keeper.num_fields

    def _pop_telemetry(self) -> tuple[StepNote | None, torch.Tensor]:
        with self._shields.telemetry.guarding("exchange"):
            return self._slow.pop()
        return None, self._slow.nothing

    def _findings(self, optimizer: Optimizer) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Return what the keeper of the state must know later, and what it has found."""
        if self._keeper is None:
            return None, ()
        with self._shields.recovery.guarding("exchange"):
            sent, found = self._keeper.to_send(optimizer)
            return sent, (found,)
        return None, (self._keeper.unable,)

    def _decide(self, gate: Gate, note: StepNote, measured: Measured, total: torch.Tensor) -> None:
        if gate.has_left:
            self.ranks.accept()
        elif note.num_exchanges == 0:
            is_unable = self._shields.recovery.is_down
            gate.decide(
                self.ranks,
                total,
                measured.loss,
                is_recorded=note.is_recorded_here,
                may_shrink=measured.may_shrink,
                has_bad_data=note.has_bad_data,
                harm=None if self._keeper is None or is_unable else self._keeper.harm,
            )
        else:
            gate.decide_further(self.ranks, total)

    def _decide_nothing(self, note: StepNote, measured: Measured, error: ExchangeFailed) -> None:
        """Go on without the other ranks, or end the run if its step is bad.

        What the others know of this step, and do about it, is not known. An ordinary step is
        applied, as without trimtab. A bad one can be neither applied nor discarded by one rank. And
        if the step before was not applied as it was, the exchange may have failed on another rank
        then, which applied it.
        """
        gate, ranks = self._gate, self.ranks
        last, self._last_decision = self._last_decision, None
        is_bad = gate is not None and gate.is_bad(measured.head, ranks.world)
        is_doubtful = self.has_restored or (last is not None and last.is_act())
        self._on_leave()
        if is_bad or is_doubtful:
            step = note.step if is_bad else note.step - 1
            raise RunStopped(
                f"the ranks could not exchange ({error}), and step {step} is a bad one: what the "
                "others did with it is not known; restart from the last checkpoint",
                RunExit.RELAUNCH,
            )
        if not ranks.is_starting or not ranks.group.is_replicated:
            log.error(
                "trimtab: ranks could not exchange (%s); this rank continues without trimtab", error
            )
        elif self.recorder is not None:
            log.warning(
                "trimtab: step %d: another rank did not come (%s); ranks that step unequally often "
                "share no numbers: the first one is recorded alone, and nothing is protected",
                note.step,
                error,
            )
            for arrived in self._in_flight.drain():
                self._record(self._unpack(*arrived))
            self._connect_to(RankGroup(slots=self._slow.slots))

    def _send(self, label: Label, values: torch.Tensor) -> None:
        """Begin to copy the numbers of a step to the host."""
        if self._device.type != "meta":  # there are only shapes
            self._in_flight.send(label, values, is_exchange=label.is_exchange)

    def _unpack(self, label: Label, values: list[float], _: bool) -> Arrival:
        return unpack(
            label, values, num_state=self._num_state, num_telemetry=len(self._slow.nothing)
        )

    def _record(self, arrival: Arrival) -> None:
        """Hand numbers to the assembler; only the first rank has one."""
        if self._assembler is None or self._shields.host.is_down:
            return
        label = arrival.label
        with self._shields.host.guarding("deliver"):
            if label.telemetry_of is not None:
                self._assembler.add_telemetry(label.telemetry_of, arrival.telemetry)
            self._assembler.add_step(label.note, arrival.head, arrival.report)

    def _act_upon(self, arrival: Arrival) -> None:
        """Act upon what all ranks read alike, at the same exchange."""
        if not arrival.label.is_exchange:
            return
        ranks, gate, head = self.ranks, self._gate, arrival.head
        had_left = ranks.has_left
        ranks.leave_if_any(arrival.num_leaving)
        is_out = bool(arrival.report) and arrival.report[VOTE] == OUT
        if gate is not None and not gate.has_left and is_out:
            gate.has_left = True
            if not gate.shield.is_down and not arrival.num_leaving:
                self._on_failure("gate", "another rank", "see that rank's log")
        if not ranks.has_left and have_slipped(head):
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
        is_finite = is_finite_step(head)
        # Two optimizers make two exchanges in a step.
        step = arrival.label.note.step
        is_new = step != self._nonfinite_step
        self._num_nonfinite = 0 if is_finite else self._num_nonfinite + is_new
        self._nonfinite_step = -1 if is_finite else step
        sent = arrival.label.sent
        if self._keeper is not None and sent is not None and not ranks.has_left:
            with self._shields.recovery.guarding("arrival"):
                self._keeper.receive(sent, arrival.state, is_finite=is_finite)

    def _stop(self, note: StepNote) -> None:
        """Too many steps in a row were not finite; every rank comes here at the same exchange."""
        sentence = f"{self._num_nonfinite} steps in a row were not finite, up to step {note.step}"
        self._num_nonfinite = -(2**31)  # once
        if self._gate is not None and not self._gate.has_left:
            raise NonFiniteRun(
                f"{sentence}: all were discarded, so the run learns nothing; look for the first "
                "module that is not finite, or continue from an older checkpoint"
            )
        log.warning("trimtab: %s: continue from a checkpoint before them", sentence)
