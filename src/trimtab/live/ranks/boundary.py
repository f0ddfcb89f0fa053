"""Boundary: where ranks add up, and where values leave the device.

Every observed step ends here, on every rank, whatever happened before: ranks that do not all come
to a collective wait for each other for ever. So this is the one part of the guard that is not
shielded; it is small, and knows nothing of what the numbers mean.

A rank whose guard failed at step t goes on coming here with its `out` bit set. At step t + L every
rank, the failed one included, reads that bit in the sum of step t, and all part at that step.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """The numbers of one step on their way to the host."""

    label: Any
    """Whatever the sender wants to have back with them."""
    buffer: torch.Tensor
    num_values: int
    arrived: torch.cuda.Event | None


class Boundary:
    """Sums a vector over ranks and hands it to the host `lag` boundaries later."""

    def __init__(self, device: torch.device, lag: int, capacity: int) -> None:
        self._device = device
        self._lag = lag
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.parted = False
        """Set when all ranks have agreed to go their own ways."""
        self._out = torch.zeros(1, device=device)
        # One buffer more than there are parcels under way, so that none is written while read; and
        # one number more than others have to send.
        pinned = device.type == "cuda"
        self._free = deque(torch.empty(1 + capacity, pin_memory=pinned) for _ in range(lag + 2))
        self._under_way: deque[Parcel] = deque()

    def step_out(self) -> None:
        """This rank has failed: tell the others from now on, or part at once if there are none."""
        self._out.fill_(1.0)
        self.parted = self.parted or self.world == 1

    def reduce(self, shared: torch.Tensor) -> torch.Tensor:
        """Add a step's numbers up over ranks; `shared` must have the same length on all."""
        total = torch.cat((self._out, shared))
        if self.world > 1:
            dist.all_reduce(total)
        return total

    def cross(
        self, label: Any, total: torch.Tensor, own: Sequence[torch.Tensor]
    ) -> tuple[Any, list[float]] | None:
        """Send a step's sums and what is not added up; return those of `lag` steps ago, if any."""
        self._send(label, torch.cat((total, *own)) if own else total)
        return self._receive() if len(self._under_way) > self._lag else None

    def drain(self) -> list[tuple[Any, list[float]]]:
        """What is still under way, oldest first; only at the end of a run."""
        return [self._receive() for _ in range(len(self._under_way))]

    def _send(self, label: Any, values: torch.Tensor) -> None:
        buffer = self._free.popleft()
        arrived = None
        if self._device.type != "meta":  # there are only shapes on meta, and nothing to send
            buffer[: len(values)].copy_(values, non_blocking=True)
        if self._device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record()
        parcel = Parcel(label=label, buffer=buffer, num_values=len(values), arrived=arrived)
        self._under_way.append(parcel)

    def _receive(self) -> tuple[Any, list[float]]:
        parcel = self._under_way.popleft()
        if parcel.arrived is not None:
            parcel.arrived.synchronize()
        out, *values = parcel.buffer[: parcel.num_values].tolist()
        self._free.append(parcel.buffer)
        self.parted = self.parted or out > 0
        return parcel.label, values
