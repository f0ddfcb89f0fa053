"""Baseline: a signal's own past as the measure of what comes next.

    recent values:   [ ------------ window ------------ ][ gap ][ this cell of 8 ]
                              medians: level, trend, scale        scored against it

The window is looked at anew every 8 records, counted from the first, so the grid does not depend on
how a run is cut. It lags, so that a rise does not hide itself, and all that is taken from it are
medians. A value that is far off never enters; after 64 such in a row the level is taken to have
moved, and they do. Non-finite values never come here.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import FloatArray, IntArray
from trimtab.detect.tools.expectation import Expectation, Shape, expect, expect_many

CELL = 8
"""Records between two looks at the window. Source: measured, 4 gives the same results at almost
twice the cost; 16 saves a quarter."""

FEWEST = 24
"""Values that a window must have before anything is scored."""

WIDE_STRIDE = 20.0
"""Steps between two records from which a log counts as thinned out: a spike is then a point or two
long, so the window is short and does not lag. Source: the study behind these rules; logs written
every 5 and 10 steps behave like every-step ones."""

_NEW_PACE = 4.0
"""A stride this many times longer or shorter is another log: the window begins anew."""

FAR_OFF = 8.0
"""A value that many scales above what was expected is rejected. Source: measured: without it a norm
spike hides the first steps of the next one 40 steps later; for the loss 8 to 15 are equal."""

MOST_REJECTED = 64
"""Values in a row that may be rejected: then it is the level that has moved, and they enter."""

_MOST_CELLS = 256
"""Windows that are looked at in one go: a value that is rejected wastes those after it."""

LOSS_SHAPE = Shape(falls=True, relative_floor=0.002, absolute_floor=0.0)
"""Floor: 0.2 % of the loss; between 0.05 and 0.5 % the results are equal."""

LOG_NORM_SHAPE = Shape(falls=False, relative_floor=0.0, absolute_floor=0.03)
"""For the logarithm of a norm. Floor: 3 %; healthy norms scatter by 6 to 12 %."""


class Score(NamedTuple):
    """One value against what was expected of it."""

    z: float
    """How many scales above."""
    expected: float
    scale: float
    stride: float
    """Steps from record to record."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Many values against what was expected of each; NaN where it was too early to say."""

    z: FloatArray
    expected: FloatArray
    scale: FloatArray
    stride: FloatArray

    @classmethod
    def unknown(cls, length: int) -> "Scores":
        """Scores of values that nothing is known of yet."""
        z, expected, scale, stride = np.full((4, length), np.nan)
        return cls(z, expected, scale, stride)

    def one(self, at: int) -> Score | None:
        """One of the scores; None where it was too early to say."""
        z = float(self.z[at])
        if z != z:
            return None
        return Score(z, float(self.expected[at]), float(self.scale[at]), float(self.stride[at]))

    def put(self, at: int, score: Score) -> None:
        """Write one score."""
        self.z[at], self.expected[at] = score.z, score.expected
        self.scale[at], self.stride[at] = score.scale, score.stride


class Baseline:
    """Scores finite values one by one, or many at once with the same result."""

    def __init__(self, shape: Shape, *, lags: bool) -> None:
        self._shape = shape
        self._lags = lags
        self._rejected = 0
        """How many values in a row were too far off to enter."""
        self._recent: list[float] = []
        self._steps: list[int] = []
        """Of the values since the last look."""
        self._in_cell = 0
        self._expectation: Expectation | None = None
        self.stride = 1.0

    def take(self, value: float, step: int) -> Score | None:
        """Score the next value; None while too few came before it."""
        if self._in_cell == CELL or not self._recent:
            self._look(step)
        known = self._expectation
        if known is None:
            self._enter(value, step)
            return None
        expected = known.at(self._in_cell + 1)
        z = (value - expected) / known.scale
        if z > FAR_OFF and self._rejected < MOST_REJECTED:
            self._rejected += 1
        else:
            self._rejected = 0 if z <= FAR_OFF else self._rejected
            self._enter(value, step)
        return Score(z, expected, known.scale, self.stride)

    def sweep(self, values: FloatArray, steps: IntArray) -> Scores:
        """Score the next values, as `take` would score one after the other."""
        scores = Scores.unknown(len(values))
        at = 0
        while at < len(values):
            done = self._sweep_steady(values[at:], steps[at:], scores, at)
            if not done:  # the window is filling, a cell is half done, a value is far off
                done = min(CELL - self._in_cell % CELL, len(values) - at)
                for place in range(at, at + done):
                    score = self.take(float(values[place]), int(steps[place]))
                    if score is not None:
                        scores.put(place, score)
            at += done
        return scores

    def restart(self) -> None:
        """Forget the past: what comes now is not comparable."""
        self._recent, self._steps, self._in_cell, self._rejected = [], [], 0, 0
        self._expectation = None

    def state_dict(self) -> dict[str, Any]:
        """All that the baseline remembers."""
        known = self._expectation
        return {
            "recent": list(self._recent),
            "steps": list(self._steps),
            "in_cell": self._in_cell,
            "rejected": self._rejected,
            "stride": self.stride,
            "expectation": [known.start, known.slope, known.floor, known.scale] if known else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the baseline that `state_dict` described."""
        self._recent, self._steps = list(state["recent"]), list(state["steps"])
        self._in_cell, self.stride = int(state["in_cell"]), float(state["stride"])
        self._rejected = int(state["rejected"])
        known = state["expectation"]
        self._expectation = Expectation(*known) if known else None

    @property
    def _window(self) -> int:
        return 40 if self.stride >= WIDE_STRIDE else 96

    @property
    def _gap(self) -> int:
        return CELL if self._lags and self.stride < WIDE_STRIDE else 0

    def _enter(self, value: float, step: int) -> None:
        self._in_cell += 1
        self._recent.append(value)
        self._steps.append(step)

    def _look(self, step: int) -> None:
        """At the first record of a cell: measure the pace, then the window before it."""
        if len(self._steps) == CELL:
            self._keep_pace(_pace([*self._steps, step]))
        self._steps = []
        self._in_cell = 0
        del self._recent[: -(self._window + self._gap)]
        window = self._recent[: len(self._recent) - self._gap]
        self._expectation = (
            expect(window, self._gap, self._shape) if len(window) >= FEWEST else None
        )

    def _keep_pace(self, pace: float) -> None:
        if self._is_new_pace(pace):
            self.stride = pace
            del self._recent[:-CELL]

    def _is_new_pace(self, pace: float) -> bool:
        known = self.stride
        return pace > 0 and not known / _NEW_PACE <= pace <= known * _NEW_PACE

    def _sweep_steady(
        self, values: FloatArray, steps: IntArray, scores: Scores, offset: int
    ) -> int:
        """Score the whole cells that have a full window and keep the pace; say how many values."""
        window, gap = self._window, self._gap
        past = window + gap
        if self._in_cell != CELL or len(self._recent) < past:
            return 0
        cells = self._cells_at_pace(steps[: _MOST_CELLS * CELL])
        if not cells:
            return 0
        count = cells * CELL
        series = np.concatenate((self._recent[-past:], values[:count]))
        windows = sliding_window_view(series, window)[:count:CELL]
        start, slope, floor, scale = expect_many(windows, gap, self._shape)
        ages = np.arange(1, CELL + 1)
        expected = np.maximum(start[:, None] + slope[:, None] * ages, floor[:, None]).ravel()
        scale_of = np.repeat(scale, CELL)
        z = (values[:count] - expected) / scale_of
        far = z > FAR_OFF
        if far.any():  # what is scored behind a rejected value is scored against another past
            cells = int(np.argmax(far)) // CELL
            count = cells * CELL
            if not cells:
                return 0
        chosen = slice(offset, offset + count)
        scores.expected[chosen], scores.scale[chosen] = expected[:count], scale_of[:count]
        scores.z[chosen], scores.stride[chosen] = z[:count], self.stride
        self._recent = series[count - CELL : count + past].tolist()
        self._steps = steps[count - CELL : count].tolist()
        self._rejected = 0
        at = cells - 1
        last = float(start[at]), float(slope[at]), float(floor[at]), float(scale[at])
        self._expectation = Expectation(*last)
        return count

    def _cells_at_pace(self, steps: IntArray) -> int:
        """How many whole cells from here on begin without a change of pace."""
        cells = len(steps) // CELL
        if not cells:
            return 0
        known = np.concatenate((self._steps, steps[: (cells - 1) * CELL + 1]))
        moves = np.diff(known).reshape(-1, CELL)
        middle = np.sort(moves, axis=1)[:, CELL // 2 - 1 : CELL // 2 + 1]
        paces = 0.5 * (middle[:, 0] + middle[:, 1])
        held = self.stride / _NEW_PACE, self.stride * _NEW_PACE
        changed = np.flatnonzero((paces > 0) & ~((held[0] <= paces) & (paces <= held[1])))
        return int(changed[0]) if len(changed) else len(paces)


def _pace(steps: list[int]) -> float:
    moves = sorted(after - before for before, after in pairwise(steps))
    return 0.5 * (moves[CELL // 2 - 1] + moves[CELL // 2])
