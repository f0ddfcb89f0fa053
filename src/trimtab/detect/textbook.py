"""The textbook's rules: its thresholds, and the three detectors that apply them.

TextbookSpike  a loss above mean + 3 deviations of the 100 losses before it
TextbookRise   200 losses in a row, each above the one before: a divergence
TextbookScale  a loss scale under 1: every step overflows

They are as published, faults included: `--rules textbook` is there to be compared with.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import Block, FloatArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS, LOSS_SCALE
from trimtab.detect.state.hard_limits import NonFinite
from trimtab.detect.tools.series import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookThresholds:
    """The thresholds of the textbook decision tree, as it states them.

    Where it counts steps, trimtab counts records: in a log written every 50 steps there are no
    others.
    """

    window: int = 100
    """Losses in the rolling mean and deviation. Source: textbook tree, question 2.1."""
    spike_sigmas: float = 3.0
    """A loss above mean + this many deviations is a spike. Source: question 2.1."""
    recovery_sigmas: float = 0.5
    """Back at or under mean + this many deviations is recovered. Source: question 2.2."""
    recovery_records: int = 50
    """Records within which a recoverable spike is back. Source: question 2.2."""
    long_tail_ratio: float = 30.0
    """A gradient norm over this many times its rolling mean points at rare tokens.
    Source: question 2.3."""
    rise_records: int = 200
    """Consecutive rising losses that make a divergence. Source: question 4.1."""
    norm_ratio: float = 2.0
    """A weight norm this many times larger or smaller within `norm_steps`. Source: question 4.3."""
    norm_steps: int = 200
    """Steps over which a weight norm is compared with itself. Source: question 4.3."""
    scale_floor: float = 1.0
    """A loss scale under this has collapsed. Source: question 3.2."""
    reopen_records: int = 16
    """An alarm this soon after an incident closed reopens it. Source: not in the tree;
    16 is how long a recovered loss must stay down in the classifier of trimtab's detector study."""


TEXTBOOK_THRESHOLDS = TextbookThresholds()
"""The textbook as it stands."""


# Trailing windows whose numbers do not depend on how a series is cut.


def trailing_moments(series: FloatArray, window: int) -> tuple[FloatArray, FloatArray]:
    """Return mean and population deviation of the `window` values before each value.

    Every window is summed in the same order, value by value, whatever the length of `series`: a
    running or pairwise sum would round differently for different cuts of one run.
    """
    count = max(len(series) - window, 0)
    total = np.zeros(count)
    squares = np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):  # losses near 1e308 may overflow to inf
        for offset in range(window):
            total += series[offset : offset + count]
        mean = total / window
        for offset in range(window):
            squares += (series[offset : offset + count] - mean) ** 2
        return mean, np.sqrt(squares / window)


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

    def update_many(self, block: Block) -> list[Finding]:
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
                Point.at(block, judged[at], loss.values[judged[at]]),
                float(mean[at]),
                float(deviation[at]),
            )
            for at in np.flatnonzero(series[window:] > limit).tolist()
        ]

    def _finding(self, point: Point, mean: float, deviation: float) -> Finding:
        return point.finding(
            self.name,
            Symptom.LOSS_SPIKE,
            Severity.ALARM,
            LOSS,
            expected=mean,
            limit=mean + self._config.spike_sigmas * deviation,
            facts={"deviation": deviation, "window": float(self._config.window)},
        )


class TextbookRise(Detector):
    """One alarm when an unbroken rise reaches its full length."""

    name = "textbook-rise"
    needs = LOSS
    not_saved = ("_length",)

    def __init__(self, config: TextbookThresholds) -> None:
        self._length = config.rise_records
        self._last = math.nan  # no loss is above it, so the first one starts at zero
        self._num_rises = 0

    def update(self, record: Record) -> list[Finding]:
        loss = record.signals.get(LOSS)
        if loss is None:
            return []
        # A jump to infinity is a different symptom, not a slow rise.
        rose = loss > self._last and math.isfinite(loss)
        self._last, self._num_rises = loss, self._num_rises + 1 if rose else 0
        if self._num_rises != self._length:
            return []
        facts = {"rises": float(self._length)}
        return [self.finding(record, Symptom.RISING_LOSS, Severity.ALARM, LOSS, facts=facts)]


class TextbookScale(Detector):
    """One alarm each time the loss scale falls under the floor."""

    name = "textbook-scale"
    needs = LOSS_SCALE
    not_saved = ("_floor",)

    def __init__(self, config: TextbookThresholds) -> None:
        self._floor = config.scale_floor
        self._is_under = False

    def update(self, record: Record) -> list[Finding]:
        scale = record.signals.get(LOSS_SCALE, math.nan)
        if not math.isfinite(scale):
            return []
        was_under, self._is_under = self._is_under, scale < self._floor
        if was_under or not self._is_under:
            return []
        return [
            self.finding(
                record, Symptom.SCALE_COLLAPSE, Severity.ALARM, LOSS_SCALE, limit=self._floor
            )
        ]


def textbook_detectors(thresholds: TextbookThresholds) -> list[Detector]:
    """Create the detectors of one run, in the order in which they report."""
    return [
        NonFinite(under_scaler=Severity.ALARM),  # the textbook knows no harmless overflow
        TextbookSpike(thresholds),
        TextbookRise(thresholds),
        TextbookScale(thresholds),
    ]
