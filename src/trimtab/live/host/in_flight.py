"""InFlight: numbers on their way from the device to the host, read `lag` meetings later.

That is the only place where the host waits for the device, and by then they have long arrived.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


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
        self._num_meetings = 0
        self._free: list[torch.Tensor] = []

    def send(self, label: Any, values: torch.Tensor, *, is_meeting: bool) -> None:
        """Send numbers; those of a step without a meeting travel along and are not counted."""
        buffer = self._free.pop() if self._free else None
        self._queue.append((label, copy_to_host(values, buffer), is_meeting))
        self._num_meetings += is_meeting

    def arrivals(self) -> Iterator[tuple[Any, list[float], bool]]:
        """What has been under way for `lag` meetings, with whether it was a meeting."""
        # Counted in meetings, which are the same on all ranks, so all read the same ones.
        while self._num_meetings > self._lag:
            yield self._receive()

    def drain(self) -> Iterator[tuple[Any, list[float], bool]]:
        """Everything, oldest first; only at the end of a run."""
        while self._queue:
            yield self._receive()

    def _receive(self) -> tuple[Any, list[float], bool]:
        label, copy, is_meeting = self._queue.popleft()
        self._num_meetings -= is_meeting
        values = copy.read()
        self._free.append(copy.buffer)
        return label, values, is_meeting
