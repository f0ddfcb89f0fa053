"""Trend: what the loss would have been without the incident.

A loss falls along a line over the logarithm of the step. Extended at half its slope from the 192
records before the onset, that line was off by 0.3 of the noise after 100 steps of clean lab runs;
the unchanged old level was off by 1.3. Only the line shows a gap that the progress of a young run
hides. Half the slope, because public runs slow down faster than the line: with the whole slope 5 of
49 labelled incidents get the wrong class, with half of it 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimtab.core.incidents import Moment
from trimtab.core.robust import TINY, jump_sigma, median, sigma_around
from trimtab.detect.tools.expectation import (
    MOST_SPREAD,
    SLOPE_TRUST,
)

TREND_RECORDS = 192
"""Records before the onset that the line is fitted to. Equal results: 128 to 256."""

LEVEL_RECORDS = 96
"""The same for a thinned log, whose 192 records would be a tenth of a run: there the loss is
assumed to stay where it is."""

MIN_RECORDS, MIN_FOR_SLOPE = 8, 48
"""Fewer losses give no trend; fewer than the second give no slope."""

RELATIVE_FLOOR = 0.002
"""The smallest scale, as a share of the level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A line over the logarithm of the step, and how far losses usually lie from it."""

    level: float
    """What is expected at `step`."""
    step: int
    fall: float
    """Change per unit of the logarithm; never above 0, because a rise is no progress."""
    scale: float
    ceiling: float
    """The highest level in the records shortly before: a loss that is back up there is not lost."""

    @classmethod
    def flat(cls, *, level: float, scale: float, step: int) -> "Trend":
        """A level that stays where it is."""
        return cls(level=level, step=step, fall=0.0, scale=scale, ceiling=level)

    def at(self, step: int) -> float:
        """The loss that is expected at a step."""
        if self.fall == 0.0 or step <= self.step:
            return self.level
        return self.level + SLOPE_TRUST * self.fall * (_log(step) - _log(self.step))


def trend_of(before: Sequence[Moment], *, is_thinned: bool) -> Trend | None:
    """The trend of the records before an onset; None if there are too few."""
    known = [m for m in before if m.loss is not None and math.isfinite(m.loss)]
    known = known[-(LEVEL_RECORDS if is_thinned else TREND_RECORDS) :]
    losses = [m.loss for m in known if m.loss is not None]
    if len(losses) < MIN_RECORDS:
        return None
    fall = 0.0 if is_thinned else _fall(known, losses)
    last = known[-1].step
    extended = [
        loss + (fall * (_log(last) - _log(m.step)) if fall else 0.0)
        for m, loss in zip(known, losses, strict=True)
    ]
    level = median(extended if fall else extended[-32:])
    spread = sigma_around(median(extended), extended)
    jumps = jump_sigma(losses)
    if not is_thinned:
        spread = max(jumps, min(spread, MOST_SPREAD * jumps))
    scale = max(spread, RELATIVE_FLOOR * abs(level), TINY)
    return Trend(level=level, step=last, fall=fall, scale=scale, ceiling=_ceiling(losses))


def _ceiling(losses: Sequence[float]) -> float:
    """The highest median of 16 losses among the newest 96."""
    newest = losses[-96:]
    return max(median(newest[at : at + 16]) for at in range(0, len(newest), 16))


def _fall(known: Sequence[Moment], losses: Sequence[float]) -> float:
    """The slope between the first and the last third, by their medians."""
    if len(known) < MIN_FOR_SLOPE or known[0].step < 0:
        return 0.0
    if any(after.step <= m.step for m, after in pairwise(known)):
        return 0.0  # steps went back: the records are not one line
    third = len(known) // 3
    logs = [_log(m.step) for m in known]
    rise = median(losses[-third:]) - median(losses[:third])
    return min(rise / (median(logs[-third:]) - median(logs[:third])), 0.0)


def _log(step: int) -> float:
    return math.log(step + 1)
