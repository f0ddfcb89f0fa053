"""The textbook spike rule: a loss above mean + 3 deviations of the 100 losses before it."""

from typing import Any

import numpy as np

from trimtab.core.block import Block, FloatArray
from trimtab.core.config import TextbookConfig
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS
from trimtab.detect.tools.windows import trailing_moments


class TextbookSpike:
    """The rule as it stands: every finite loss enters the window, spikes included.

    So one spike hides the next (the deviation has grown) and heavy tails alarm often. Non-finite
    losses stay out: one NaN in the mean would blind the rule for the whole window.
    """

    name = "textbook-spike"

    def __init__(self, config: TextbookConfig) -> None:
        self._config = config
        self._recent: FloatArray = np.empty(0)

    def feed(self, block: Block) -> list[Finding]:
        """Take the next records; return each loss above the limit."""
        window = self._config.window
        loss = block.column(LOSS)
        rows = np.flatnonzero(loss.finite)
        series = np.concatenate((self._recent, loss.values[rows]))
        mean, deviation = trailing_moments(series, window)
        limit = mean + self._config.spike_sigmas * deviation
        judged = rows[len(rows) - len(limit) :]
        self._recent = series[-window:]
        return [
            Finding(
                detector=self.name,
                symptom=Symptom.LOSS_SPIKE,
                severity=Severity.ALARM,
                signal=LOSS,
                step=int(block.step[judged[at]]),
                tick=int(block.tick[judged[at]]),
                value=float(loss.values[judged[at]]),
                expected=float(mean[at]),
                limit=float(limit[at]),
                facts={"deviation": float(deviation[at]), "window": float(window)},
            )
            for at in np.flatnonzero(series[window:] > limit)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The losses in the window."""
        return {"recent": self._recent.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._recent = np.array(state["recent"], dtype=np.float64)
