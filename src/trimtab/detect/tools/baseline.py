"""SignalBaseline: a signal scored against its own past.

    recent values:   [ ------------ window ------------ ][ gap ][ this cell of 8 ]
                              medians: level, trend, scale        scored against it

The window is measured again every 8 records, counted from the first, so the grid does not depend on
how a run is cut. It lags, so that a rise does not hide itself, and only medians are computed from
it. A value that is far off never enters it; after 64 such values in a row the level is assumed to
have moved, and they do. Callers pass finite values only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from trimtab.core.block import BoolArray, FloatArray, IntArray
from trimtab.core.robust import (
    TINY,
    jump_sigmas,
    median,
    medians,
    sigmas_around,
)
from trimtab.core.signals import Quality
from trimtab.core.state import Stateful
from trimtab.detect.tools.series import windows_over

# How far values of each quality can be trusted, and what follows for their scores.
#
# A score is multiplied by the trust in its value: a half-trusted value must be twice as far off. So
# poor logging makes trimtab quieter, not louder, and the finding carries its confidence.

TRUST = {
    Quality.RAW: 1.0,
    Quality.WINDOW_MEAN: 0.9,
    Quality.SMOOTHED: 0.6,
    Quality.POST_CLIP: 0.5,
    Quality.INFERRED: 0.3,
}
"""Chosen, not measured: neighbouring averages over n steps rise together, so their sums scatter by
up to the root of n more than sums over raw values."""


def trust_in(signal: str, qualities: Mapping[str, Quality]) -> float:
    return TRUST[qualities.get(signal, Quality.RAW)] if qualities else 1.0


# Expectation: what a signal should be next and how far off it usually is, from a past window.

MOST_SPREAD = 3.0
"""Residuals may be this many times wider than jumps, no more. Slow waves of the data double them
(measured); a curved start makes them twenty times wider and would blind the first records."""

SLOPE_TRUST = 0.5
"""The share of a falling trend that is assumed to continue. Source: measured on public runs: the
whole slope raises false alarms in two thirds of the healthy ones, because a loss falls ever
slower."""

LOCAL_RECORDS = 16
"""The expectation is never under the median of this many newest records: only a loss that really
rises is a spike. Results are equal from 8 to 24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSpec:
    """What is known in advance about a signal."""

    falls: bool
    """Whether it may have a falling trend, as a loss has."""
    relative_floor: float
    """The smallest scale, as a share of the level."""
    absolute_floor: float
    """The smallest scale, in the unit of the signal."""


class Expectation(NamedTuple):
    """What one window says about the records after it."""

    start: float
    slope: float
    floor: float
    scale: float

    def at(self, age: int) -> float:
        """Return what is expected of the record `age` records after the window was measured."""
        return max(self.start + self.slope * age, self.floor)


def expect(
    windows: FloatArray, gap: int, spec: BaselineSpec
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return start, slope, floor and scale of what each row says, if it ended `gap` records ago."""
    count = windows.shape[1]
    middle = (count - 1) / 2
    slope = np.zeros(len(windows))
    level_of = windows
    if spec.falls:
        third = count // 3
        rise = medians(windows[:, -third:]) - medians(windows[:, :third])
        slope = np.minimum(rise / (count - third), 0.0)
        level_of = windows - slope[:, None] * (np.arange(count) - middle)
    level = medians(level_of)
    spread = sigmas_around(level, level_of)
    jumps = jump_sigmas(windows)
    scale = np.maximum(jumps, np.minimum(spread, MOST_SPREAD * jumps))
    scale = np.maximum(scale, spec.relative_floor * np.abs(level))
    return (
        level + SLOPE_TRUST * slope * (middle + gap),
        SLOPE_TRUST * slope,
        medians(windows[:, -LOCAL_RECORDS:]),
        np.maximum(scale, max(spec.absolute_floor, TINY)),
    )


# Excursions: high values that keep coming back belong to the run.
#
# A loss may have two levels: mixed and plain images, alternating tasks, two sources of data. The
# window of a baseline then shows the noise of the lower level alone, and every value of the upper
# one looks like a spike. What recurs is a mode of the data: when separate excursions have come
# often enough, their height is the scale.
#
# Spikes that keep coming back are no mode, and the next one must be seen. A mode is left at once,
# a spike comes back over records between the two levels; and what is much higher than all
# excursions of an even height is not one of them.

MEMORY, MIN_COUNT = 256, 5
"""Records in which this many separate excursions make a mode. Source: planted second levels with
shares of 5 to 45 % raise 4 alarms a run instead of up to 80; with 4 one labelled spike of the
public tuning runs is lost, 6 finds no more."""

SCALES_HIGH = 1.5
"""A usual excursion counts as this many scales. Chosen: sixteen of them in a row stay under the
threshold of a sum, which is 6."""

EVEN, WAY_BACK = 0.6, 3.0
"""The share of the highest that the heights of a mode exceed, and the scales beyond which a value
under that is on its way back. Chosen on drawn modes with shares of 3 to 40 % and on drawn spikes
with tails of 2 to 10 records."""

MUCH_HIGHER = 1.3
"""Times the highest of the usual excursions from which on a value is not one of them. Chosen: it
sees a spike 1.5 times as high as those before."""


class Excursions(Stateful):
    """The separate excursions of the latest records that were no spikes, and their heights."""

    def __init__(self) -> None:
        self._known: list[tuple[int, float]] = []
        """For how many records each is over, and its highest value above what was expected."""
        self._heights: list[float] = []
        """The heights of the values of the excursion that goes on."""

    def __bool__(self) -> bool:
        return bool(self._known or self._heights)

    def clear(self) -> None:
        self._known, self._heights = [], []

    def learn(self, window: Sequence[float], known: Expectation, far_off: float) -> None:
        """Add the first window, which was not scored."""
        for age, value in zip(range(-len(window), 0), window, strict=True):
            height = value - known.start - known.slope * age
            self.widen(height, known.scale, is_far=height > far_off * known.scale)

    def widen(self, height: float, scale: float, *, is_far: bool) -> float:
        """Add a value, by its height above what was expected; return the scale to judge it by."""
        if self._known:
            self._known = [(age + 1, high) for age, high in self._known if age < MEMORY]
        usual = self._usual(height, scale, is_far=is_far)
        if is_far:
            self._heights.append(height)
        elif self._heights:
            self._end(height, scale)
        return usual

    def widen_many(self, heights: FloatArray, scales: FloatArray) -> FloatArray:
        """Add values that are not far off; return the scale to judge each by."""
        if not self:
            return scales
        usual = scales.copy()
        begin = 0
        if self._heights:  # it is over
            usual[0] = self.widen(float(heights[0]), float(scales[0]), is_far=False)
            begin = 1
        first = begin
        for at in range(len(self._known) - MIN_COUNT + 1):
            last = begin + MEMORY - self._known[at][0]  # of those before which it is remembered
            high = median(high for _, high in self._known[at:]) / SCALES_HIGH
            usual[first:last] = np.maximum(usual[first:last], high)
            first = last
        age_by = len(scales) - begin
        self._known = [(age + age_by, high) for age, high in self._known if age + age_by <= MEMORY]
        return usual

    def _usual(self, height: float, scale: float, *, is_far: bool) -> float:
        highs = [high for _, high in self._known]
        if self._heights and _is_even(self._heights):
            highs.append(max(self._heights))
        if len(highs) < MIN_COUNT:
            return scale
        highest = max(highs)
        if is_far and height > MUCH_HIGHER * highest and _is_even(highs):
            return scale
        return max(scale, median(highs) / SCALES_HIGH)

    def _end(self, height: float, scale: float) -> None:
        """Remember the excursion that is over, unless its values show the way up or back."""
        is_on_the_way = WAY_BACK * scale < height < EVEN * max(self._heights)
        if not is_on_the_way and _is_even(self._heights):
            self._known.append((0, max(self._heights)))
        self._heights = []


def _is_even(heights: Sequence[float]) -> bool:
    return min(heights) > EVEN * max(heights)


RECORDS_PER_CELL = 8
"""Records between two measurements of the window. Source: measured, 4 gives the same results at
almost twice the cost; 16 saves a quarter."""

MIN_WINDOW = 24
"""Values that a window must have before anything is scored."""

WIDE_STRIDE = 20.0
"""Steps between two records from which a log counts as thinned out: a spike is then one or two
records long, so the window is short and does not lag. Source: the study for these rules; logs
written every 5 and 10 steps behave like every-step ones."""

_NEW_STRIDE = 4.0
"""A stride this many times longer or shorter is a different log: the window starts again."""

FAR_OFF = 8.0
"""A value this many scales above what was expected is rejected. Source: measured: without it a norm
spike hides the first steps of the next one 40 steps later; for the loss 8 to 15 are equal."""

MAX_REJECTED_IN_A_ROW = 64
"""Values in a row that may be rejected: after that the level has moved, and they enter."""

_FEWEST_CELLS, _MOST_CELLS = 32, 192
"""Windows that are measured at once, after a rejected value and at most. A rejected value wastes
the work on those after it, and more do not fit into the cache."""

LOG_NORM_BASELINE = BaselineSpec(falls=False, relative_floor=0.0, absolute_floor=0.03)
"""For the logarithm of a norm. Floor: 3 %; healthy norms scatter by 6 to 12 %."""

_AGES = np.arange(1, RECORDS_PER_CELL + 1)


class Score(NamedTuple):
    """One value against what was expected of it."""

    z: float
    """How many scales above what was expected."""
    expected: float
    scale: float
    stride: float
    """Steps from record to record."""
    recurs: bool = False
    """Whether high values keep coming back, so that the scale is theirs (`Excursions`)."""

    @property
    def is_known(self) -> bool:
        """Whether enough came before it to say."""
        return self.z == self.z


@dataclass(frozen=True, slots=True)
class Scores:
    """Many values against what was expected of each; NaN where it was too early to say."""

    z: FloatArray
    expected: FloatArray
    scale: FloatArray
    stride: FloatArray
    recurs: BoolArray

    @classmethod
    def unknown(cls, length: int) -> "Scores":
        z, expected, scale, stride = np.full((4, length), np.nan)
        return cls(z, expected, scale, stride, np.zeros(length, dtype=np.bool_))

    def __getitem__(self, rows: slice) -> "Scores":
        expected, scale = self.expected[rows], self.scale[rows]
        return Scores(self.z[rows], expected, scale, self.stride[rows], self.recurs[rows])

    def one(self, at: int) -> Score:
        z, expected, scale = float(self.z[at]), float(self.expected[at]), float(self.scale[at])
        return Score(z, expected, scale, float(self.stride[at]), bool(self.recurs[at]))

    def set(self, at: int, score: Score) -> None:
        self.z[at], self.expected[at] = score.z, score.expected
        self.scale[at], self.stride[at], self.recurs[at] = score[2:]


class SignalBaseline(Stateful):
    """Scores finite values one by one, or many at once with the same result."""

    not_saved = ("_spec", "_lags")

    def __init__(self, spec: BaselineSpec, *, lags: bool) -> None:
        self._spec = spec
        self._lags = lags
        self._rejected = 0
        """Values in a row that were too far off to enter."""
        self._recent: list[float] = []
        self._steps: list[int] = []
        """Of the values in this cell."""
        self._in_cell = 0
        self._expectation: Expectation | None = None
        self._excursions = Excursions()
        self.stride = 1.0

    def update(self, value: float, step: int) -> Score | None:
        """Score the next value; None while too few came before it."""
        if self._in_cell == RECORDS_PER_CELL or not self._recent:
            self._start_cell(step)
        known = self._expectation
        if known is None:
            self._append(value, step)
            return None
        expected = known.at(self._in_cell + 1)
        z = (value - expected) / known.scale
        is_far = z > FAR_OFF
        scale = known.scale
        if is_far or self._excursions:
            scale = self._excursions.widen(value - expected, scale, is_far=is_far)
            z = (value - expected) / scale
        if is_far and self._rejected < MAX_REJECTED_IN_A_ROW:
            self._rejected += 1
        else:
            self._rejected = self._rejected if is_far else 0
            self._append(value, step)
        return Score(z, expected, scale, self.stride, scale > known.scale)

    def update_many(self, values: FloatArray, steps: IntArray) -> Scores:
        """Score the next values, as `update` would one by one."""
        scores = Scores.unknown(len(values))
        at, count = 0, _MOST_CELLS * RECORDS_PER_CELL
        while at < len(values):
            part = slice(at, at + count)
            done = self._score_steady(values[part], steps[part], scores, at)
            count = min(2 * count, _MOST_CELLS * RECORDS_PER_CELL)
            if done < len(values[part]):
                count = _FEWEST_CELLS * RECORDS_PER_CELL
            if not done:  # the window is filling, a cell is half full, a value is far off
                done = min(RECORDS_PER_CELL - self._in_cell % RECORDS_PER_CELL, len(values) - at)
                for place in range(at, at + done):
                    score = self.update(float(values[place]), int(steps[place]))
                    if score is not None:
                        scores.set(place, score)
            at += done
        return scores

    def restart(self) -> None:
        self._recent, self._steps, self._in_cell, self._rejected = [], [], 0, 0
        self._expectation = None
        self._excursions.clear()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._expectation is not None:
            self._expectation = Expectation(*self._expectation)

    @property
    def _window(self) -> int:
        return 40 if self.stride >= WIDE_STRIDE else 96

    @property
    def _gap(self) -> int:
        return RECORDS_PER_CELL if self._lags and self.stride < WIDE_STRIDE else 0

    def _append(self, value: float, step: int) -> None:
        self._in_cell += 1
        self._recent.append(value)
        self._steps.append(step)

    def _start_cell(self, step: int) -> None:
        """At the first record of a cell, measure the stride and then the window before it."""
        if len(self._steps) == RECORDS_PER_CELL:
            self._follow_stride(_median_stride([*self._steps, step]))
        self._steps = []
        self._in_cell = 0
        del self._recent[: -(self._window + self._gap)]
        window = self._recent[: len(self._recent) - self._gap]
        is_first = self._expectation is None
        if len(window) < MIN_WINDOW:
            self._expectation = None
            return
        known = expect(np.array([window]), self._gap, self._spec)
        self._expectation = Expectation(*(float(value[0]) for value in known))
        if is_first:
            self._excursions.learn(window, self._expectation, FAR_OFF)

    def _follow_stride(self, stride: float) -> None:
        if self._is_new_stride(stride):
            self.stride = stride
            del self._recent[:-RECORDS_PER_CELL]
            self._expectation = None
            self._excursions.clear()

    def _is_new_stride(self, stride: float) -> bool:
        known = self.stride
        return stride > 0 and not known / _NEW_STRIDE <= stride <= known * _NEW_STRIDE

    def _score_steady(
        self, values: FloatArray, steps: IntArray, scores: Scores, offset: int
    ) -> int:
        """Score the whole cells that have a full window and the same stride; return how many
        values."""
        window, gap = self._window, self._gap
        past = window + gap
        if self._in_cell != RECORDS_PER_CELL or len(self._recent) < past:
            return 0
        cells = self._cells_at_stride(steps)
        if not cells:
            return 0
        count = cells * RECORDS_PER_CELL
        series = np.concatenate((self._recent[-past:], values[:count]))
        windows = windows_over(series, window, RECORDS_PER_CELL)[:cells]
        known = expect(windows, gap, self._spec)
        start, slope, floor, scale = known
        expected = np.maximum(start[:, None] + slope[:, None] * _AGES, floor[:, None]).ravel()
        scale_of = np.repeat(scale, RECORDS_PER_CELL)
        z = (values[:count] - expected) / scale_of
        far = z > FAR_OFF
        if far.any():  # values after a rejected one are scored against a different past
            cells = int(np.argmax(far)) // RECORDS_PER_CELL
            count = cells * RECORDS_PER_CELL
            if not cells:
                return 0
        expected, scale_of = expected[:count], scale_of[:count]
        usual = self._excursions.widen_many(values[:count] - expected, scale_of)
        chosen = slice(offset, offset + count)
        scores.expected[chosen], scores.scale[chosen] = expected, usual
        scores.z[chosen] = z[:count] if usual is scale_of else (values[:count] - expected) / usual
        scores.stride[chosen], scores.recurs[chosen] = self.stride, usual > scale_of
        self._recent = series[count - RECORDS_PER_CELL : count + past].tolist()
        self._steps = steps[count - RECORDS_PER_CELL : count].tolist()
        self._rejected = 0
        self._expectation = Expectation(*(float(values[cells - 1]) for values in known))
        return count

    def _cells_at_stride(self, steps: IntArray) -> int:
        """Return how many whole cells from here on start without a change of stride."""
        cells = len(steps) // RECORDS_PER_CELL
        if not cells:
            return 0
        known = np.concatenate((self._steps, steps[: (cells - 1) * RECORDS_PER_CELL + 1]))
        moves = known[1:] - known[:-1]
        low, high = self.stride / _NEW_STRIDE, self.stride * _NEW_STRIDE
        if low <= moves.min() and moves.max() <= high:  # so is every median: nearly always
            return cells
        strides = medians(moves.reshape(-1, RECORDS_PER_CELL).astype(np.float64))
        changed = np.flatnonzero((strides > 0) & ~((low <= strides) & (strides <= high)))
        return int(changed[0]) if len(changed) else cells


def _median_stride(steps: list[int]) -> float:
    moves = sorted(after - before for before, after in pairwise(steps))
    return 0.5 * (moves[RECORDS_PER_CELL // 2 - 1] + moves[RECORDS_PER_CELL // 2])
