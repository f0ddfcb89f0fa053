"""The textbook divergence rule: 200 losses in a row, each above the one before."""

from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.config import TextbookConfig
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS


class TextbookRise:
    """One alarm when an unbroken rise reaches its full length."""

    name = "textbook-rise"

    def __init__(self, config: TextbookConfig) -> None:
        self._length = config.rise_records
        self._last = float("nan")  # compares as "not risen", so the first loss starts at zero
        self._risen = 0

    def feed(self, block: Block) -> list[Finding]:
        """Take the next records; return the ones at which a rise became a divergence."""
        loss = block.column(LOSS)
        rows = np.flatnonzero(loss.present)
        if not len(rows):
            return []
        values = loss.values[rows]
        with np.errstate(invalid="ignore"):
            rose = values > np.concatenate(([self._last], values[:-1]))
        rose &= np.isfinite(values)  # a jump to infinity is another symptom, not a slow rise
        index = np.arange(1, len(rows) + 1)
        risen = index - np.maximum.accumulate(np.where(rose, -self._risen, index))
        self._last, self._risen = float(values[-1]), int(risen[-1])
        return [
            Finding(
                detector=self.name,
                symptom=Symptom.RISING_LOSS,
                severity=Severity.ALARM,
                signal=LOSS,
                step=int(block.step[rows[at]]),
                tick=int(block.tick[rows[at]]),
                value=float(values[at]),
                facts={"rises": float(self._length)},
            )
            for at in np.flatnonzero(risen == self._length)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The last loss and how long it has been rising."""
        return {"last": self._last, "risen": self._risen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._last, self._risen = float(state["last"]), int(state["risen"])
