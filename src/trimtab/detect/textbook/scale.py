"""The textbook loss-scale rule: a scale under 1 means that every step overflows."""

from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.config import TextbookConfig
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS_SCALE


class TextbookScale:
    """One alarm each time the loss scale falls under the floor."""

    name = "textbook-scale"

    def __init__(self, config: TextbookConfig) -> None:
        self._floor = config.scale_floor
        self._under = False

    def feed(self, block: Block) -> list[Finding]:
        """Take the next records; return the ones at which the scale fell under the floor."""
        scale = block.column(LOSS_SCALE)
        rows = np.flatnonzero(scale.finite)
        if not len(rows):
            return []
        values = scale.values[rows]
        under = values < self._floor
        before = np.concatenate(([self._under], under[:-1]))
        self._under = bool(under[-1])
        return [
            Finding(
                detector=self.name,
                symptom=Symptom.SCALE_COLLAPSE,
                severity=Severity.ALARM,
                signal=LOSS_SCALE,
                step=int(block.step[rows[at]]),
                tick=int(block.tick[rows[at]]),
                value=float(values[at]),
                limit=self._floor,
            )
            for at in np.flatnonzero(under & ~before)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Whether the scale is under the floor."""
        return {"under": self._under}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._under = bool(state["under"])
