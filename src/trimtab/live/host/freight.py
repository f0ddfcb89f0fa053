"""Freight: telemetry crosses the ranks in parts, so that no step has much to exchange.

A deep model has some hundreds of these numbers. They wait here and ride along with the numbers of
the steps that follow, the same part at the same step on every rank.
"""

import math
from dataclasses import dataclass

import torch

from trimtab.live.host.host_side import StepNote

MOST_NUMBERS = 48
"""Of a part. With what every protected step exchanges that is 244 bytes, of 256 that a step may
have: up to there a collective takes no longer than an empty one (measured on gloo)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step's telemetry."""

    note: StepNote
    """Of the step that it belongs to."""
    slots: slice
    """Where it is in the whole."""
    is_last: bool

    @property
    def num_slots(self) -> int:
        """How many numbers it has."""
        return int(self.slots.stop - self.slots.start)


class Freight:
    """Takes the telemetry of a step and hands it out part by part."""

    def __init__(self, num_slots: int, telemetry_every: int) -> None:
        # All must be on its way before the next telemetry comes.
        num_parts = min(math.ceil(num_slots / MOST_NUMBERS), telemetry_every)
        self._num_slots = num_slots
        self._size = math.ceil(num_slots / num_parts)
        self._note: StepNote | None = None
        self._waiting = torch.empty(0)

    def load(self, note: StepNote, telemetry: torch.Tensor) -> None:
        """Take the telemetry of a step."""
        self._note, self._waiting = note, telemetry

    def join(self, head: torch.Tensor) -> tuple[Part | None, torch.Tensor]:
        """Let the next part, if there is one, ride along with the numbers of a step."""
        if self._note is None:
            return None, head
        start = self._num_slots - len(self._waiting)
        riding, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
        part = Part(
            note=self._note,
            slots=slice(start, start + len(riding)),
            is_last=not len(self._waiting),
        )
        if part.is_last:
            self._note = None
        return part, torch.cat((head, riding))
