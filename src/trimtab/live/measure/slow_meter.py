"""SlowMeter: telemetry and activations of some steps, sent with the numbers of the next update.

They are measured after the update, when the all-reduce of its step is over, so they wait here for
the next one. Telemetry and activations have shields of their own: what fails costs nothing else.
"""

from collections.abc import Sequence
from typing import Any

import torch

from trimtab.live.measure.activations import Activations
from trimtab.live.measure.telemetry import Telemetry
from trimtab.live.shield import Shields


class SlowMeter:
    """What is measured every few steps."""

    def __init__(
        self,
        telemetry: Telemetry,
        activations: Activations | None,
        shields: Shields,
        telemetry_every: int,
        device: torch.device,
    ) -> None:
        self._telemetry = telemetry
        self.activations = activations
        self._shields = shields
        self._every = telemetry_every
        self._device = device
        self.slots = (*telemetry.slots, *(activations.slots if activations else ()))
        """What this rank measures."""
        self._places: torch.Tensor | None = None
        self.num_updates = 0
        """Updates so far; every `telemetry_every`-th is measured."""
        self.nothing = torch.zeros(len(self.slots), dtype=torch.float32, device=device)
        """What is sent if nothing was measured: a vector has the same length at every update, so
        that no rank, whatever has failed in it, sends more than another."""
        self._measured: tuple[Any, torch.Tensor] | None = None

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Every parameter that an optimizer moves."""
        return self._telemetry.parameters

    @property
    def _is_due(self) -> bool:
        """Whether the next update is measured."""
        return self.num_updates % self._every == 0

    def connect(self, slots: Sequence[str]) -> None:
        """Learn what all ranks measure together: a rank leaves zero what it does not have."""
        self.nothing = torch.zeros(len(slots), dtype=torch.float32, device=self._device)
        place_of = {slot: place for place, slot in enumerate(slots)}
        places = [place_of[slot] for slot in self.slots]
        is_same = places == list(range(len(slots)))
        self._places = None if is_same else torch.tensor(places, device=self._device)

    def prepare(self) -> None:
        """Ranks have compared their parameters: weigh them accordingly."""
        with self._shields.telemetry.guarding("ranks"):
            self._telemetry.prepare()

    def arm(self) -> None:
        """Measure the next step, if it is the turn of one."""
        if not self._is_due or self.activations is None:
            return
        if not self._shields.activations.is_down:
            with self._shields.activations.guarding("hooks"):
                self.activations.arm()

    def pop(self) -> tuple[Any, torch.Tensor]:
        """Return the note of the step that was measured last and its numbers; None and zeros if
        they were sent already."""
        if self._measured is None:
            return None, self.nothing
        measured, self._measured = self._measured, None
        return measured

    def after_update(self, note: Any) -> bool:
        """Measure an update, if it is the turn of one; returns whether it was."""
        is_measured = self._is_due and self._measure(note)
        self.num_updates += 1
        self.arm()
        return is_measured

    def disarm(self) -> None:
        """Nothing more is measured until the next `arm`."""
        if self.activations is not None:
            with self._shields.activations.guarding("hooks"):
                self.activations.disarm()

    def _measure(self, note: Any) -> bool:
        parts = []
        shields = self._shields
        for meter, shield in (
            (self._telemetry, shields.telemetry),
            (self.activations, shields.activations),
        ):
            if meter is None:
                continue
            found = None
            if not shield.is_down:
                with shield.guarding("measure"):
                    found = meter.measure()
            if found is None:
                size = len(meter.slots)
                found = torch.zeros(size, dtype=torch.float32, device=self._device)
            parts.append(found)
        self.disarm()
        if shields.telemetry.is_down and (self.activations is None or shields.activations.is_down):
            return False
        values = torch.cat(parts)
        if self._places is not None:
            values = self.nothing.index_copy(0, self._places, values)
        self._measured = (note, values)
        return True
