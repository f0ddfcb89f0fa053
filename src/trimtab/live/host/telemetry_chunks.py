"""TelemetryChunks: telemetry crosses the ranks in chunks, so that no step has much to exchange.

A deep model has some hundreds of these numbers. They wait here and ride along with the numbers of
the meetings that follow, the same chunk at the same meeting on every rank. A chunk has the same
length whether or not there is something to send: no rank can ever send more than another.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

MAX_NUMBERS = 46
"""Of a chunk. With what every protected step exchanges that is 256 bytes, all that a step may
have: up to there a collective takes no longer than an empty one (measured on gloo)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a step's telemetry."""

    note: Any
    """Of the step that it belongs to."""
    start: int
    """Where it begins in the whole."""
    is_last: bool


class TelemetryChunks:
    """Takes the telemetry of a step and hands it out chunk by chunk."""

    def __init__(self, num_slots: int, telemetry_every: int, device: torch.device) -> None:
        # All must be on its way before the next telemetry comes.
        num_chunks = max(min(math.ceil(num_slots / MAX_NUMBERS), telemetry_every), 1)
        self._num_slots = num_slots
        self.size = math.ceil(num_slots / num_chunks)
        """Numbers in a chunk; the last one is filled up with zeros."""
        self.nothing = torch.zeros(self.size, dtype=torch.float32, device=device)
        """What rides along if nothing waits."""
        self._padding = torch.zeros(
            self.size * num_chunks - num_slots, dtype=torch.float32, device=device
        )
        self._note: Any = None
        self._waiting = self.nothing
        self._start = 0

    def load(self, note: Any, telemetry: torch.Tensor) -> None:
        """Take the telemetry of a step."""
        self._note, self._start = note, 0
        self._waiting = torch.cat((telemetry, self._padding))

    def pop(self) -> tuple[Chunk | None, torch.Tensor]:
        """The next chunk and its numbers; zeros if nothing waits."""
        if self._note is None:
            return None, self.nothing
        start, self._start = self._start, self._start + self.size
        chunk = Chunk(note=self._note, start=start, is_last=self._start >= self._num_slots)
        if chunk.is_last:
            self._note = None
        return chunk, self._waiting[start : self._start]

    def pop_rest(self) -> tuple[Chunk | None, torch.Tensor]:
        """All that waits, as one chunk that has the same length on every rank and at any time."""
        start, note, self._note = self._start, self._note, None
        rest = self.nothing.new_zeros(self._num_slots + len(self._padding))
        if note is None:
            return None, rest
        waiting = self._waiting[start:]
        rest[: len(waiting)] = waiting
        return Chunk(note=note, start=start, is_last=True), rest
