"""Neighbours: how far a loss rises above the few just before it.

    [ ........ 8 ........ ]
               [ .. 3 .. ] now        rise = now - the higher of the two medians

In many runs the loss swings with the order of the data, by more than its noise and over dozens of
steps. Against a window of 96 records the swing is noise, and a spike must stand out from both; the
neighbours of a record swing with it. The price is a short memory: after four high records the
neighbours are high themselves, so this sees how a spike begins, and the baseline the rest.
"""

from collections import deque

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import FloatArray
from trimtab.core.robust import SIGMA, TINY, median, medians
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import MIN_WINDOW, RECORDS_PER_CELL, BaselineSpec, Score, Scores

NEAR, NEAREST = 8, 3
"""Records whose medians a loss must exceed. Source: measured; both together find a tenth more of
the spikes that one record begins than either alone, at as few false alarms."""

WINDOW = 128
"""Distances from the median of the 8 before; their median gives the scale. Source: measured, 64 are
too few, 96 and 128 equal; the longer, the less one spike hides the next."""

_BATCH = 16_384
"""Losses that are scored at once: a bound on memory."""


class Neighbours(Stateful):
    """Scores finite losses one by one, or many at once with the same result."""

    not_saved = ("_spec",)

    def __init__(self, spec: BaselineSpec) -> None:
        self._spec = spec
        self._near: list[float] = []
        self._distances: deque[float] = deque(maxlen=WINDOW)
        self._count = 0
        """Distances that were measured; the scale is updated at every eighth."""
        self._scale: float | None = None

    def update(self, value: float) -> Score | None:
        """Score the next loss; None while too few came before it."""
        near = self._near
        if len(near) < NEAR:
            near.append(value)
            return None
        level = median(near)
        if self._count % RECORDS_PER_CELL == 0 and self._count >= MIN_WINDOW:
            self._scale = SIGMA * median(self._distances)
        score = None
        if self._scale is not None:
            expected = max(level, sorted(near[-NEAREST:])[NEAREST // 2])
            spec = self._spec
            floor = max(spec.relative_floor * abs(level), spec.absolute_floor, TINY)
            scale = max(self._scale, floor)
            score = Score((value - expected) / scale, expected, scale, 1.0)
        self._distances.append(abs(value - level))
        self._count += 1
        del near[0]
        near.append(value)
        return score

    def update_many(self, values: FloatArray) -> Scores:
        """Score the next losses, as `update` would one by one."""
        scores = Scores.unknown(len(values))
        at = 0
        while at < len(values):
            if len(self._near) < NEAR or self._count < WINDOW or self._count % RECORDS_PER_CELL:
                score = self.update(float(values[at]))
                if score is not None:
                    scores.set(at, score)
                at += 1
            else:
                at += self._score_steady(values[at : at + _BATCH], scores, at)
        return scores

    def restart(self) -> None:
        self._near = []

    def _score_steady(self, values: FloatArray, scores: Scores, offset: int) -> int:
        """Score losses from the start of a cell, with full windows; return how many."""
        series = np.concatenate((self._near, values))
        windows = sliding_window_view(series, NEAR)[: len(values)]
        level = medians(windows)
        first, second, third = windows[:, -3], windows[:, -2], windows[:, -1]
        low, high = np.minimum(first, second), np.maximum(first, second)
        expected = np.maximum(level, np.maximum(low, np.minimum(high, third)))
        distances = np.concatenate((self._distances, np.abs(values - level)))
        looks = sliding_window_view(distances, WINDOW)[: len(values) : RECORDS_PER_CELL]
        of_cells = SIGMA * medians(looks)
        scale = np.repeat(of_cells, RECORDS_PER_CELL)[: len(values)]
        spec = self._spec
        floor = np.maximum(spec.relative_floor * np.abs(level), max(spec.absolute_floor, TINY))
        scale = np.maximum(scale, floor)
        chosen = slice(offset, offset + len(values))
        scores.expected[chosen], scores.scale[chosen] = expected, scale
        scores.z[chosen], scores.stride[chosen] = (values - expected) / scale, 1.0
        self._near = series[-NEAR:].tolist()
        self._distances.extend(distances[-WINDOW:].tolist())
        self._count += len(values)
        self._scale = float(of_cells[-1])
        return len(values)
