"""Steps whose numbers are on their way from the device to the host, read `lag` exchanges later.

`InFlight` is the only place where the host waits for the device, and by then the numbers have long
arrived. `StepNote` is what the host knows of a step meanwhile.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch

from trimtab.core.block import NO_POSITION
from trimtab.explain.batches.rows import TokenRows


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Numbers that are copied to the host without waiting for them."""

    buffer: torch.Tensor
    num_values: int
    arrived: torch.cuda.Event | None

    def read(self) -> list[float]:
        """The numbers, as soon as they are there."""
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
    """A queue of copies; one leaves when `lag` later ones of meetings have entered."""

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._queue: deque[tuple[Any, HostCopy, bool]] = deque()
        self._num_exchanges = 0
        self._free: list[torch.Tensor] = []

    def send(self, label: Any, values: torch.Tensor, *, is_exchange: bool) -> None:
        """Send numbers; those of a step without a meeting travel along and are not counted."""
        buffer = self._free.pop() if self._free else None
        self._queue.append((label, copy_to_host(values, buffer), is_exchange))
        self._num_exchanges += is_exchange

    def arrivals(self) -> Iterator[tuple[Any, list[float], bool]]:
        """What has been under way for `lag` meetings, with whether it was a meeting."""
        # Counted in meetings, which are the same on all ranks, so all read the same ones.
        while self._num_exchanges > self._lag:
            yield self._receive()

    def drain(self) -> Iterator[tuple[Any, list[float], bool]]:
        """Everything, oldest first; only at the end of a run."""
        while self._queue:
            yield self._receive()

    def _receive(self) -> tuple[Any, list[float], bool]:
        label, copy, is_exchange = self._queue.popleft()
        self._num_exchanges -= is_exchange
        values = copy.read()
        self._free.append(copy.buffer)
        return label, values, is_exchange


class StepState(StrEnum):
    """Where a step stands; one step for each update that the user meant.

        OPEN --record--> RECORDED --pre-hook--> LOOKED_AT --post-hook--> APPLIED
                             |                      |
                             |                      +-- exception in the update --> BROKEN_OFF
                             +-- guard.skip(), or the next step begins --> SKIPPED
                             +-- GradScaler passed over it --> OVERFLOW

    Whether an update that was looked at was discarded is decided on the device: the host learns of
    it with the step's numbers.
    """

    OPEN = "open"
    RECORDED = "recorded"
    LOOKED_AT = "looked at"
    APPLIED = "applied"
    SKIPPED = "skipped by the user"
    OVERFLOW = "overflow"
    BROKEN_OFF = "broken off"


@dataclass(slots=True, kw_only=True)
class StepNote:
    """What the host knows of a step."""

    step: int
    clock: float = 0.0
    signals: dict[str, float] = field(default_factory=dict)
    data_position: int = NO_POSITION
    norm_is_after_clip: bool = False
    """Whether the norm was taken in the optimizer's hook, where clipping may lie before it."""
    state: StepState = StepState.OPEN
    is_recorded_here: bool = False
    """Whether this rank has recorded a loss for it."""
    num_exchanges: int = 0
    """How often ranks have met for it: once for each optimizer that moved."""
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

    def user_signals(self) -> dict[str, float]:
        """The user's signals that came from the device."""
        if self.device_values is None:
            return {}
        return dict(zip(self.device_names, self.device_values.read(), strict=True))
