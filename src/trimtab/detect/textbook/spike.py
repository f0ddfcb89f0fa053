"""The textbook spike rule: a loss above mean + 3 deviations of the 100 losses before it."""

import math
from collections import deque

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS
from trimtab.detect.textbook.thresholds import TextbookThresholds
from trimtab.detect.tools.rows import Seen
from trimtab.detect.tools.windows import moments, trailing_moments


class TextbookSpike(Detector):
    """The rule as published: every finite loss enters the window, spikes included.

    So one spike hides the next (the deviation has grown) and heavy tails alarm often. Non-finite
    losses stay out: one NaN in the mean would blind the rule for the whole window.
    """

    name = "textbook-spike"
    not_saved = ("_config",)

    def __init__(self, config: TextbookThresholds) -> None:
        self._config = config
        self._recent: deque[float] = deque(maxlen=config.window)

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        loss = record.signals.get(LOSS, math.nan)
        if not math.isfinite(loss):
            return []
        findings = []
        if len(self._recent) == self._config.window:
            mean, deviation = moments(self._recent)
            if loss > mean + self._config.spike_sigmas * deviation:
                findings.append(
                    self._finding(Seen(record.tick, record.step, loss), mean, deviation)
                )
        self._recent.append(loss)
        return findings

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        window = self._config.window
        loss = block.column(LOSS)
        rows = np.flatnonzero(loss.finite)
        series = np.concatenate((self._recent, loss.values[rows]))
        mean, deviation = trailing_moments(series, window)
        limit = mean + self._config.spike_sigmas * deviation
        judged = rows[len(rows) - len(limit) :]
        self._recent.extend(loss.values[rows[-window:]].tolist())
        return [
            self._finding(
                Seen.at(block, judged[at], loss.values[judged[at]]),
                float(mean[at]),
                float(deviation[at]),
            )
            for at in np.flatnonzero(series[window:] > limit).tolist()
        ]

    def _finding(self, seen: Seen, mean: float, deviation: float) -> Finding:
        return Finding(
            detector=self.name,
            symptom=Symptom.LOSS_SPIKE,
            severity=Severity.ALARM,
            signal=LOSS,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            expected=mean,
            limit=mean + self._config.spike_sigmas * deviation,
            facts={"deviation": deviation, "window": float(self._config.window)},
        )
