"""The numbers of a step: summed over ranks on the device, and read on the host `lag` steps later.

`RankSync` has the only collectives of a step. Every `optimizer.step()` makes the same ones on every
rank, recorded or not: an all-reduce (SUM) of a vector of fixed length and, in a protected run, a
second one (MAX) of two whole numbers. The first of these is the vote: OUT comes from a rank whose
gate has failed or whose guard is closed, and then all ranks apply the step. The second is the
largest loss of any rank, packed with that rank.

The sum begins with a count of ranks that want to leave. A rank whose guard failed or was closed
keeps coming with its bit set (`complete`), every rank reads it `lag` exchanges later, and all leave
at the same one. An exchange that fails raises `ExchangeFailed`, and decides nothing.

`InFlight` is the only place where the host waits for the device, and by then the numbers have long
arrived. `TrainStep` is the step itself, which waits for them. Where the device is the host, numbers
are floats: they become a tensor only to be added up.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist

from trimtab.core.block import NO_POSITION
from trimtab.journal.batches.rows import TokenRows
from trimtab.live.arithmetic import Math, Scalar, Vector
from trimtab.live.ranks.rank_group import RankGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Numbers that are copied to the host without waiting for them."""

    buffer: torch.Tensor
    num_values: int
    arrived: torch.cuda.Event | None

    def read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        values: list[float] = self.buffer[: self.num_values].tolist()
        return values


def copy_to_host(values: torch.Tensor, buffer: torch.Tensor | None = None) -> HostCopy:
    """Begin to copy; `buffer` is reused if it is large enough."""
    pinned = values.device.type == "cuda"
    if buffer is None or len(buffer) < len(values) or buffer.dtype != values.dtype:
        buffer = torch.empty(len(values), dtype=values.dtype, device="cpu", pin_memory=pinned)
    arrived = None
    if values.device.type != "meta":  # there are only shapes on meta, and nothing to send
        buffer[: len(values)].copy_(values.detach(), non_blocking=True)
    if pinned:
        arrived = torch.cuda.Event()
        arrived.record()
    return HostCopy(buffer=buffer, num_values=len(values), arrived=arrived)


class InFlight:
    """A queue of copies; one leaves when `lag` later ones of exchanges have entered."""

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._queue: deque[tuple[Any, HostCopy | list[float], bool]] = deque()
        self._num_exchanges = 0
        self._free: list[torch.Tensor] = []

    def send(self, packet: Any, values: Vector, *, is_exchange: bool) -> None:
        """Send numbers; those of a step without an exchange are not counted."""
        if isinstance(values, torch.Tensor):
            values = copy_to_host(values, self._free.pop() if self._free else None)
        self._queue.append((packet, values, is_exchange))
        self._num_exchanges += is_exchange

    def arrivals(self) -> Iterator[tuple[Any, list[float]]]:
        """Yield what was sent `lag` exchanges ago, with its numbers."""
        # Counted in exchanges, which are the same on all ranks, so all read the same ones.
        while self._num_exchanges > self._lag:
            yield self._receive()

    def drain(self) -> Iterator[tuple[Any, list[float]]]:
        """Yield everything, oldest first; only at the end of a run."""
        while self._queue:
            yield self._receive()

    def _receive(self) -> tuple[Any, list[float]]:
        packet, sent, is_exchange = self._queue.popleft()
        self._num_exchanges -= is_exchange
        if isinstance(sent, list):
            return packet, sent
        values = sent.read()
        self._free.append(sent.buffer)
        return packet, values


class StepState(StrEnum):
    """Where a step stands; one step for each update that the user meant.

        OPEN --record--> RECORDED --pre-hook--> INSPECTED --post-hook--> APPLIED
                             |                      |
                             |                      +-- exception in the update --> BROKEN_OFF
                             +-- guard.skip(), or the next step begins --> SKIPPED
                             +-- GradScaler passed over it --> OVERFLOW

    Whether an update that was inspected was discarded is decided on the device: the host learns of
    it with the step's numbers.
    """

    OPEN = "open"
    RECORDED = "recorded"
    INSPECTED = "inspected"
    APPLIED = "applied"
    SKIPPED = "skipped by the user"
    OVERFLOW = "overflow"
    BROKEN_OFF = "broken off"


@dataclass(slots=True, kw_only=True, eq=False)
class TrainStep:
    """One step, from its first loss to its record.

    It is made when a step begins, and its facts are added while it lasts. Its numbers travel with
    the exchange of each of its optimizers; it waits for them on the first rank, and is recorded.
    """

    step: int
    state: StepState = StepState.OPEN
    clock: float = 0.0
    signals: dict[str, float] = field(default_factory=dict)
    data_position: int = NO_POSITION
    has_bad_data: bool = False
    """Whether it is discarded because the run was relaunched from before its data."""
    norm_is_after_clip: bool = False
    """Whether the norm was taken in the optimizer's hook, where clipping may lie before it."""
    is_recorded_here: bool = False
    """Whether this rank has recorded a loss for it."""
    num_exchanges: int = 0
    """Exchanges for it: one for each optimizer that moved."""
    has_telemetry: bool = False
    """Whether telemetry of the step follows, with the numbers of the next update."""
    is_closed: bool = False
    """Whether everything that the host knows is in here."""
    device_names: tuple[str, ...] = ()
    """The user's signals that are on their way from the device."""
    device_values: HostCopy | None = None
    token_rows: tuple[TokenRows, ...] = ()
    """The token ids of each micro-batch."""
    row_losses: tuple[HostCopy, ...] = ()
    """The losses of each micro-batch's sequences, on their way from the device."""
    row_ids: tuple[tuple[int, ...], ...] = ()
    """The numbers of each micro-batch's rows in the data."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Signals that all ranks have measured together, as far as they have arrived."""
    num_arrived: int = 0
    """Exchanges whose numbers have arrived."""
    is_recorded: bool = False
    """Whether any rank has recorded a loss for it."""
    telemetry_is_here: bool = False

    def record(self) -> None:
        self.is_recorded_here, self.state = True, StepState.RECORDED

    def arrive(self, numbers: Mapping[str, float], *, is_recorded: bool) -> None:
        """Take the numbers of one exchange; those of its first one are what is recorded."""
        if self.num_arrived == 0:
            self.numbers |= numbers
        self.num_arrived += 1
        self.is_recorded = self.is_recorded or is_recorded

    def arrive_telemetry(self, numbers: Mapping[str, float]) -> None:
        """Take telemetry; nothing if it was lost."""
        self.telemetry_is_here = True
        self.numbers |= numbers

    @property
    def is_complete(self) -> bool:
        """Whether nothing more comes."""
        has_all = self.num_arrived >= self.num_exchanges
        return self.is_closed and has_all and self.telemetry_is_here >= self.has_telemetry

    def user_signals(self) -> dict[str, float]:
        if self.device_values is None:
            return {}
        return dict(zip(self.device_names, self.device_values.read(), strict=True))


ACCEPT, DISCARD, OUT = 0, 1, 2

_TOP = 0x7FFFFFFF
_RANK_BITS = 32


def with_rank(value: torch.Tensor, rank: int) -> torch.Tensor:
    """Pack a float and its rank into one int64 that sorts as the float; NaN above everything."""
    bits = value.view(torch.int32)
    # Floats of one sign sort as their bits do, the negative ones backwards.
    ordered = torch.where(bits < 0, bits ^ _TOP, bits)
    # Processors make NaNs with either sign; a negative one would sort lowest.
    ordered = torch.where(value.isnan(), _TOP, ordered)
    return (ordered.long() << _RANK_BITS) | rank


def value_and_rank(packed: torch.Tensor) -> torch.Tensor:
    """Unpack the float and its rank, both as floats."""
    ordered = (packed >> _RANK_BITS).int()
    bits = torch.where(ordered < 0, ordered ^ _TOP, ordered)
    rank = packed & ((1 << _RANK_BITS) - 1)
    return torch.cat((bits.view(torch.float32), rank.float()))


FIRST_EXCHANGES, FIRST_SECONDS = 100, 10.0
"""Exchanges in which no rank waits longer for another than this. Ranks that step unequally often
(local SGD, DiLoCo) wait for each other in one of the first, and for nothing. Chosen: ranks that
average gradients meet in the backward pass, so they reach `optimizer.step()` within a second."""


class ExchangeFailed(Exception):
    """The ranks could not exchange: one of them is gone, or did not come in time."""


class RankSync:
    """Adds vectors up over ranks and counts votes."""

    def __init__(
        self,
        group: RankGroup,
        device: torch.device,
        arithmetic: Math,
        *,
        lag: int = 0,
        num_values: int = 0,
        votes: bool = False,
    ) -> None:
        """Exchange `num_values` numbers and the count of ranks that leave, which have left `lag`
        exchanges later; with a vote if `votes`, as in a run that is protected."""
        self.group = group
        self.world = group.world
        self.has_left = False
        """Set when all ranks have agreed to exchange no more, or when they cannot."""
        self._math = arithmetic
        self._num_values = num_values
        self._votes = votes
        self._is_leaving = torch.zeros(1, dtype=torch.float32, device=device)
        self._accept = torch.zeros(1, dtype=torch.int64, device=device)
        self._out = torch.full_like(self._accept, OUT)
        self._no_loss = torch.full((1,), -torch.inf, dtype=torch.float32, device=device)
        self._largest: torch.Tensor | None = None
        self._wants_to_leave = False
        self._recent: deque[Vector] = deque(maxlen=lag + 1)
        """Totals of the last exchanges; the oldest one is what the other ranks read now."""
        self._num_made = 0
        """Collectives of the present update so far."""
        self._num_exchanges = 0

    @property
    def largest_loss(self) -> Sequence[Scalar]:
        """The largest loss of the last vote, NaN first, and its rank; nothing if there is one."""
        if self._largest is None:
            return ()
        found = value_and_rank(self._largest)
        return found.tolist() if self._math.is_host else found.unbind()

    def last_total(self) -> list[float]:
        """Return the sums of the last exchange, the ranks that leave in front; waits for them."""
        found: list[float] = _as_list(self._recent[-1])
        return found

    @property
    def is_starting(self) -> bool:
        """Whether ranks that step unequally often would still be meeting for the first time."""
        return self._num_exchanges < FIRST_EXCHANGES

    def leave(self) -> None:
        """Ask to leave: at once if there is one rank, else with the next exchanges."""
        self._wants_to_leave = True
        self._is_leaving.fill_(1.0)
        self.has_left = self.has_left or self.world == 1

    def sum(self, *numbers: Vector, is_alone: bool = False) -> Vector:
        """Add numbers up over ranks; the count of ranks that leave is put in front."""
        if self.world > 1 and is_alone:
            self._num_made = 1 + self._votes  # no other rank waits for this one
        if self._math.is_host:
            total: Vector = [float(self._wants_to_leave)]
            for vector in numbers:
                total += vector.tolist() if isinstance(vector, torch.Tensor) else vector
            if self.world > 1 and not is_alone:
                sums = torch.tensor(total, dtype=torch.float64)
                self._reduce(sums, dist.ReduceOp.SUM)
                total = sums.tolist()
        else:
            total = torch.cat((self._is_leaving, *numbers))
            if self.world > 1 and not is_alone:
                self._reduce(total, dist.ReduceOp.SUM)
        self._recent.append(total)
        return total

    def vote(self, discards: Scalar | None, loss: Scalar | None) -> Scalar:
        """Vote whether to discard a step, None if this rank's gate failed; returns the outcome."""
        is_host = self._math.is_host
        if self.world == 1 or not self._votes:
            out: Scalar = OUT if is_host else self._out[0]
            return out if discards is None else discards
        vote, value = self._out, self._no_loss
        if discards is not None:
            vote = self._accept + discards
        if loss is not None:
            value = self._no_loss.new_full((1,), loss) if is_host else loss.view(1)
        both = torch.cat((vote, with_rank(value, self.group.rank)))
        self._reduce(both, dist.ReduceOp.MAX)
        self._largest = both[1:]
        return int(both[0]) if is_host else both[0]

    def accept(self) -> Scalar:
        """Vote for the step of a run that is protected no longer; returns the outcome."""
        return self.vote(ACCEPT if self._math.is_host else self._accept[0], None)

    def complete(self, *, is_alone: bool) -> None:
        """Make the collectives that this update still owes the other ranks; ends an update.

        An error before or between them has left them out, or this rank is about to leave and comes
        for nothing else.
        """
        owes = 1 + self._votes - self._num_made
        if owes > self._votes:
            self.sum(torch.zeros(self._num_values, device=self._out.device), is_alone=is_alone)
        if self._num_made < 1 + self._votes:
            self.vote(None, None)
        if owes and len(self._recent) == self._recent.maxlen:
            # Reads the device, which only a rank that is about to leave may wait for.
            self.leave_if_any(float(self._recent[0][0]))
        self._num_made = 0

    def leave_if_any(self, num_leaving: float) -> None:
        """Leave if any rank wanted to, once a sum has reached the host."""
        self.has_left = self.has_left or num_leaving > 0

    def _reduce(self, tensor: torch.Tensor, how: Any) -> None:
        if self.has_left:
            return
        try:
            if self.is_starting and tensor.device.type == "cpu" and self.group.seconds:
                # Not on a device: NCCL ends the process when a collective takes too long.
                options = dist.AllreduceOptions()
                options.reduceOp = dist.ReduceOp(how)
                options.timeout = timedelta(seconds=min(FIRST_SECONDS, self.group.seconds))
                self.group.handle.allreduce([tensor], options).wait()
            else:
                dist.all_reduce(tensor, how, group=self.group.handle)
        except RuntimeError as error:
            self.has_left = True
            raise ExchangeFailed(_without_source(str(error))) from error
        self._num_made += 1
        self._num_exchanges += how == dist.ReduceOp.SUM


def _as_list(vector: Vector) -> Vector:
    return vector.tolist() if isinstance(vector, torch.Tensor) else vector


def _without_source(message: str) -> str:
    """Return the beginning of an error of gloo without the place in its source."""
    where, _, what = message.partition("] ")
    return (what if ".cc:" in where else message)[:80]
