"""StepSync: the numbers of a step are added up over ranks, and become records later.

    exchange   head and the telemetry of the step before are added up over ranks, the gate decides
    in flight  for `lag` exchanges
    receive    the same numbers on every rank: ranks leave, a broken run stops; on the first rank
               `RecordAssembler` makes records of them

A step waits in the assembler until it is closed, the numbers of each of its optimizers are there
and, if it was measured, its telemetry came with the numbers of the next update. Records leave in
their order. A rank that failed keeps coming to the exchanges, with zeros and a vote to leave.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.config import LiveConfig
from trimtab.core.errors import NonFiniteRun
from trimtab.core.events import SLOW_RANK
from trimtab.core.text import counted
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.measure.activations import read_activations, silent_sites
from trimtab.live.measure.by_rank import SlowRank, read_maxima
from trimtab.live.measure.state_hash import read_hashes
from trimtab.live.measure.step_meter import HEAD, have_slipped, read_head
from trimtab.live.measure.telemetry import SlowMeter, read_telemetry
from trimtab.live.protect.gate import Decision, Gate
from trimtab.live.protect.gate_reporter import BAD_DATA, HARM, VOTE, GateReporter
from trimtab.live.ranks.exchange import OUT, InFlight, RankSync, StepNote
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

    def __init__(self, recorder: RunRecorder, slots: Sequence[str], world: int) -> None:
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


_NUM_SUMS = 1 + len(HEAD)
"""Numbers of every exchange: how many ranks leave, and the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is needed to understand the numbers of an exchange when they arrive."""

    note: StepNote
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
class _Agreed:
    """What every rank reads alike of an exchange."""

    step: int
    num_leaving: float
    head: dict[str, float]
    report: dict[str, float]
    state: tuple[Any, list[float]] | None
    """What was found about the trained state."""


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
        self._is_draining = False
        self._unseen: deque[_Agreed] = deque()
        """What arrived early because this rank was closed: the others receive it later."""
        self.num_exchanges = 0
        """Updates so far, with those of steps that were done again."""
        self.ranks = RankSync(RankGroup(), device)
        self.connect(first=True)

    @property
    def is_measuring(self) -> bool:
        """Whether anything is still measured here."""
        return not (self.is_closed or self._shields.numbers.is_down or self.ranks.has_left)

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
        slots = self._slow.connect(group)
        if self.recorder is not None:
            self._assembler = RecordAssembler(self.recorder, slots, group.world)

    def exchange(
        self,
        note: StepNote,
        optimizer: Optimizer,
        measured: Measured,
        earlier: Decision | None,
        *,
        is_alone: bool,
    ) -> Decision | None:
        """Add up one update over ranks; `earlier` is the decision about the first optimizer."""
        self.num_exchanges += 1
        ranks, gate = self.ranks, self._gate
        telemetry_of, telemetry = self._slow.pop()
        sent, found = (None, None) if self._keeper is None else self._keeper.to_send(optimizer)
        parts = (measured.head, telemetry) if found is None else (measured.head, found, telemetry)
        total = ranks.sum(*parts, is_alone=is_alone)
        if telemetry_of is None:  # zeros, that the host need not see
            total = total[: self._num_sums]
        else:
            self._slow.learn(total)
        decision = None
        if gate is not None and not gate.has_left and not is_alone:
            if note.num_exchanges == 0:
                decision = gate.decide(
                    ranks,
                    total,
                    measured.loss,
                    is_recorded=note.is_recorded_here,
                    may_shrink=measured.may_shrink,
                    has_bad_data=note.has_bad_data,
                    harm=None if self._keeper is None else self._keeper.harm,
                )
            elif earlier is not None:
                decision = gate.decide_further(earlier, total)
        names, report = ((), ()) if decision is None else decision.values()
        note.num_exchanges += 1
        label = Label(note=note, telemetry_of=telemetry_of, report_names=names, sent=sent)
        with self._shields.numbers.guarding("arrivals"):
            self._send(label, torch.cat((total, *report)) if report else total, is_exchange=True)
        if self._num_nonfinite >= self._config.max_nonfinite_steps:
            self._stop(note)
        return decision

    def send_skipped(self, note: StepNote, head: torch.Tensor) -> None:
        """Send the numbers of a step without an exchange: those of this rank."""
        if self._assembler is not None and self.recorder is not None:
            self._send(Label(note=note), self.ranks.sum(head, is_alone=True), is_exchange=False)
            self.recorder.event("step not applied", note.step, {"why": note.state.value})

    def release(self) -> None:
        """Hand over what is complete, when a step was closed."""
        if self._assembler is not None and not self._shields.host.is_down:
            with self._shields.host.guarding("release"):
                self._assembler.hand_over()

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

    def _send(self, label: Label, values: torch.Tensor, *, is_exchange: bool) -> None:
        if self._device.type == "meta":  # there are only shapes
            return
        self._in_flight.send(label, values, is_exchange=is_exchange)
        if is_exchange and self._unseen:
            self._act_upon(self._unseen.popleft())
        for arrived in self._in_flight.arrivals():
            self._receive(*arrived)

    def _receive(self, label: Label, values: list[float], is_exchange: bool) -> None:
        """Act upon numbers that have arrived, then deliver them."""
        # A step that skipped its update had no exchange, and sends the head alone.
        first = self._num_sums if is_exchange else _NUM_SUMS
        end = first + (0 if label.telemetry_of is None else len(self._slow.nothing))
        head = dict(zip(HEAD, values[1:_NUM_SUMS], strict=True))
        report = dict(zip(label.report_names, values[end:], strict=True))
        if is_exchange:
            state = None if label.sent is None else (label.sent, values[_NUM_SUMS:first])
            if state is not None and report:
                report[HARM] = values[first - 1]
            if label.note.has_bad_data and report:
                report[BAD_DATA] = 1.0
            agreed = _Agreed(
                step=label.note.step,
                num_leaving=values[0],
                head=head,
                report=report,
                state=state,
            )
            if self._is_draining:
                self._unseen.append(agreed)
            else:
                self._act_upon(agreed)
        if self._assembler is None or self._shields.host.is_down:
            return
        if self.is_closed and not self._is_draining:
            return
        with self._shields.host.guarding("deliver"):
            if label.telemetry_of is not None:
                self._assembler.add_telemetry(label.telemetry_of, values[first:end])
            self._assembler.add_step(label.note, head, report)

    @property
    def _num_sums(self) -> int:
        return _NUM_SUMS + (0 if self._keeper is None else self._keeper.num_fields)

    def _act_upon(self, agreed: _Agreed) -> None:
        """Act upon what all ranks read alike, at the same exchange."""
        ranks, gate = self.ranks, self._gate
        num_leaving, head, report = agreed.num_leaving, agreed.head, agreed.report
        had_left = ranks.has_left
        ranks.leave_if_any(num_leaving)
        if gate is not None and report and not gate.has_left and report[VOTE] == OUT:
            gate.has_left = True
            if not gate.shield.is_down and not num_leaving:
                self._on_failure("gate", "another rank", "see that rank's log")
        if not ranks.has_left and have_slipped(head):
            ranks.has_left = True
            log.warning(
                "trimtab: ranks are at different steps, because some of them skipped a step alone; "
                "trimtab stops on all of them"
            )
        if ranks.has_left and not had_left:
            if not self.is_closed and not self._shields.numbers.is_down:
                log.warning(
                    "trimtab: another rank failed or closed its guard; trimtab stops on all ranks, "
                    "training continues"
                )
                self._on_failure("guard", "another rank", "it has failed or was closed")
            self._on_leave()
        norm = head["given_norm"] + head["grad_squares"]
        is_finite = math.isfinite(norm) and head["nan"] + head["inf"] == 0
        # Two optimizers make two exchanges in a step.
        is_new = agreed.step != self._nonfinite_step
        self._num_nonfinite = 0 if is_finite else self._num_nonfinite + is_new
        self._nonfinite_step = -1 if is_finite else agreed.step
        if self._keeper is not None and agreed.state is not None and not ranks.has_left:
            self._keeper.receive(*agreed.state, is_finite=is_finite)

    def _stop(self, note: StepNote) -> None:
        """Too many steps in a row were not finite; every rank comes here at the same exchange."""
        sentence = (
            f"{self._num_nonfinite} steps in a row were not finite, up to step {note.step}: the "
            "state is broken; restart from a good checkpoint"
        )
        self._num_nonfinite = -(2**31)  # once
        if self._gate is not None and not self._gate.has_left:
            raise NonFiniteRun(sentence)
        log.warning("trimtab: %s", sentence)
