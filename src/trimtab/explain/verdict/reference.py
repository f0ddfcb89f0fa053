"""Reference: what the loss was expected to do from an onset on, by the records before it.

    loss  o
           o o                     level: the midmean of the longest window that agrees with the
              o o o_                      shorter ones, at the onset
                   o-o-o.o         slope: the flattest fall that is certain in windows of 12, 24,
                      |   ' - . _         48, ... records; a rise is never expected
                    onset

Half of that slope is expected to go on until the step number has doubled, and nothing from there
on: nearly all losses fall ever more slowly. A reference is fixed once, at the onset, so nothing
that comes later can change what an incident is measured against.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.explain.verdict.level import fit_line, level_error, longest_repeat, midmean, noise
from trimtab.explain.verdict.rows import Losses, Row, newest_attempt

HISTORY = 512
"""Records before an onset that are used at most. Source: the study of verdicts; 256 lose long
trends."""

LATE = 2
"""Records right before the onset that are left out: alarms come late. Source: onsets that are dated
5 records late cost 2 of 42 verdicts with 2 left out; 24 left out turn 1 % of false alarms into
false advice to act."""

MIN_BEFORE = 4
"""Fewer finite losses before say nothing about a level."""

NEAREST, LONGEST = 12, 128
"""The shortest window, and the longest that may give the level. Chosen on drawn exponentials and
public tuning runs: longer ones run 10 to 20 % too low."""

LEVEL_RECORDS, NOISE_RECORDS = 32, 128
"""Newest records whose level decides on the scale, and that show the noise of one record."""

MIN_NOISE = 1e-9
"""Noise of a loss that never changed: nothing is divided by zero."""

EXPECTED_SHARE, REACH = 0.5, math.log(2)
"""The share of the certain slope that is expected to go on, and until when, in the logarithm of the
step. Chosen as above: with the whole slope 30 to 60 % of recovered runs were called lingering."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The level and the trend of a loss before an onset, with their errors.

    Level, slope and noise are in units of the scale: the logarithm of the loss, or the loss.
    """

    records: int
    """Finite losses before the onset, at most 512."""
    onset_step: int
    first_step: int
    """The step that counts as 0: that of the first record if it is negative."""
    start: float | None
    """The loss with which the log begins; None if it is not known."""
    is_log: bool = False
    level: float = math.nan
    """The level expected at the onset; NaN if too few records came before."""
    level_error: float = math.nan
    slope: float = 0.0
    """Change per unit of the logarithm of the step, never above 0."""
    likely_slope: float = 0.0
    """The same as it most likely is, not as far as it is certain."""
    noise: float = math.nan
    """Deviation of one record."""
    longest_repeat: int = 1
    """How often the same loss came in a row."""
    history: tuple[float, ...] = ()
    """The losses before, in the scale: they say how far a level can be wrong."""

    @property
    def has_level(self) -> bool:
        return not math.isnan(self.level)

    @cached_property
    def past(self) -> FloatArray:
        return np.array(self.history)

    @property
    def unit(self) -> float:
        """What a fraction of the loss is in the scale."""
        return 1.0 if self.is_log else max(abs(self.level), 4 * self.noise)

    def to_scale(self, losses: FloatArray) -> FloatArray:
        if not self.is_log:
            return losses
        # A loss that is printed as 0 is no further down than the lowest of the others.
        return np.log(np.maximum(losses, _lowest(losses)))

    def to_loss(self, value: float) -> float:
        return math.exp(min(value, 700.0)) if self.is_log else value

    def log_steps(self, steps: FloatArray) -> FloatArray:
        """Return the logarithm of steps, 0 at the onset."""
        counted = np.maximum(steps - self.first_step, 0) + 1
        return np.asarray(np.log(counted)) - math.log(max(self.onset_step - self.first_step, 0) + 1)

    def expected(self, log_steps: FloatArray) -> FloatArray:
        """Return what is expected at steps, given as `log_steps` returns them."""
        return self.level + EXPECTED_SHARE * self.slope * np.clip(log_steps, 0, REACH)

    def state_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Reference":
        return cls(**{**state, "history": tuple(state["history"])})


def _lowest(losses: FloatArray) -> float:
    positive = losses[losses > 0]
    return float(positive.min()) if len(positive) else 1e-30


def reference_of(
    before: Sequence[Row], onset_step: int, first_step: int, start: float | None
) -> Reference:
    """Measure what was usual in the rows before an onset."""
    rows = newest_attempt(before, NEAREST)
    known = Losses.of(rows[: len(rows) - LATE] if len(rows) > 4 * LATE else rows)
    step, loss = known.step[-HISTORY:], known.loss[-HISTORY:]
    reference = Reference(
        records=len(loss), onset_step=onset_step, first_step=min(first_step, 0), start=start
    )
    if len(loss) < MIN_BEFORE:
        return reference
    usual = midmean(loss[-LEVEL_RECORDS:])
    is_log = bool(loss.min() > 0 and usual > 3 * noise(loss[-NOISE_RECORDS:]))
    reference = dataclasses.replace(reference, is_log=is_log)
    values = reference.to_scale(loss)
    sigma = max(noise(values[-NOISE_RECORDS:]), MIN_NOISE)
    level, error, slope, likely = _level_and_slope(reference.log_steps(step), values, sigma)
    return dataclasses.replace(
        reference,
        level=level,
        level_error=error,
        slope=slope,
        likely_slope=likely,
        noise=sigma,
        longest_repeat=longest_repeat(loss),
        history=tuple(values.tolist()),
    )


def _level_and_slope(
    log_steps: FloatArray, values: FloatArray, sigma: float
) -> tuple[float, float, float, float]:
    """Return the level at the onset with its error, and the fall as far as it is certain or likely.

    Certain is the flattest one of all windows, likely that of the longest that may give a level.
    """
    width, agreed, likely = min(NEAREST, len(values)), 0, 0.0
    level = error = math.nan
    slopes = []
    while True:
        at_onset, slope, line_error, slope_error = fit_line(log_steps[-width:], values[-width:])
        slopes.append(slope + slope_error)
        if width <= LONGEST:
            likely = slope
        if width <= LEVEL_RECORDS:
            line_error = max(line_error, level_error(values, width, sigma))
        is_alike = agreed == width // 2 and abs(at_onset - level) < error + line_error
        if not agreed or (is_alike and width <= LONGEST):
            level = at_onset if slope < 0 else midmean(values[-width:])
            error, agreed = line_error, width
        if width >= len(values):
            return level, error, min(0.0, max(slopes)), min(0.0, likely)
        width = min(2 * width, len(values))
