"""RowLosses: the loss of every sequence of a step, from the losses of its tokens."""

from typing import Any

import torch

from trimtab.live.host.in_flight import HostCopy, copy_to_host
from trimtab.live.measure.numbers import OddNumber
from trimtab.state.host_copy import local

VALUES = 3
"""For each sequence: mean loss, largest loss of a token, and the place of that token."""

MAX_ROWS = 4096
"""Sequences of a micro-batch; more than that are losses of tokens without their sequences."""

MAX_MICRO_BATCHES = 1024
"""Micro-batches that may wait for their step to end."""


class RowLosses:
    """Collects the losses of sequences; they are reduced on the device and read with the lag."""

    def __init__(self) -> None:
        self._copies: list[HostCopy] = []

    def add(self, losses: Any) -> None:
        """Take the losses of a micro-batch: [batch, sequence] by token, or [batch]."""
        if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
            raise OddNumber(type(losses).__name__)
        if losses.dim() == 0 or not losses.numel() or len(losses) > MAX_ROWS:
            raise OddNumber(f"a tensor of shape {tuple(losses.shape)}")
        values = reduce_rows(losses)
        if values.device.type != "meta" and len(self._copies) < MAX_MICRO_BATCHES:
            self._copies.append(copy_to_host(values))

    def pop(self) -> tuple[HostCopy, ...]:
        """The copies under way, one a micro-batch."""
        copies, self._copies = self._copies, []
        return tuple(copies)


def reduce_rows(losses: torch.Tensor) -> torch.Tensor:
    """Mean and largest loss of each sequence, and where; a loss of exactly 0 is padding."""
    rows = local(losses.detach()).float()
    rows = rows.reshape(len(rows), -1)
    count = (rows != 0).sum(dim=1).clamp(min=1)
    largest, place = rows.max(dim=1)
    return torch.stack((rows.sum(dim=1) / count, largest, place.float()), dim=1).reshape(-1)
