"""Neighbours: how far a loss rises above the few just before it.

    [ ........ 8 ........ ]
               [ .. 3 .. ] now        rise = now - the higher of the two medians

In many runs the loss swings with the order of the data, by more than its noise and over dozens of
steps. Against a window of 96 records the swing is noise, and a spike must stand out from both; the
neighbours of a record swing along. What is lost is memory: after four high records the neighbours
are high themselves, so this sees how a spike begins, and Baseline the rest.
"""

from collections import deque
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import FloatArray
from trimtab.detect.tools.baseline import CELL, FEWEST, LOSS_SHAPE, Score, Scores
from trimtab.detect.tools.expectation import SIGMA, TINY, median, medians

NEAR, NEAREST = 8, 3
"""Records whose medians a loss must exceed. Source: measured; both together find a tenth more of
the spikes that one record begins than either alone, at as few false alarms."""

WINDOW = 128
"""Distances from the median of the 8 before, from whose median the scale is taken. Source:
measured, 64 are too few, 96 and 128 equal; the longer the less one spike hides the next."""

_BATCH = 16_384
"""Losses that are looked at in one go: a bound on memory."""

_FLOOR = LOSS_SHAPE.relative_floor


class Neighbours:
    """Scores finite losses one by one, or many at once with the same result."""

    def __init__(self) -> None:
        self._near: list[float] = []
        self._distances: deque[float] = deque(maxlen=WINDOW)
        self._count = 0
        """Distances that were measured; the scale is looked at anew at every eighth."""
        self._scale: float | None = None

    def take(self, value: float) -> Score | None:
        """Score the next loss; None while too few came before it."""
        near = self._near
        if len(near) < NEAR:
            near.append(value)
            return None
        level = median(near)
        if self._count % CELL == 0 and self._count >= FEWEST:
            self._scale = SIGMA * median(self._distances)
        score = None
        if self._scale is not None:
            expected = max(level, sorted(near[-NEAREST:])[NEAREST // 2])
            scale = max(self._scale, _FLOOR * abs(level), TINY)
            score = Score((value - expected) / scale, expected, scale, 1.0)
        self._distances.append(abs(value - level))
        self._count += 1
        del near[0]
        near.append(value)
        return score

    def sweep(self, values: FloatArray) -> Scores:
        """Score the next losses, as `take` would score one after the other."""
        scores = Scores.unknown(len(values))
        at = 0
        while at < len(values):
            if len(self._near) < NEAR or self._count < WINDOW or self._count % CELL:
                score = self.take(float(values[at]))
                if score is not None:
                    scores.put(at, score)
                at += 1
            else:
                at += self._sweep_steady(values[at : at + _BATCH], scores, at)
        return scores

    def restart(self) -> None:
        """Forget the neighbours: what comes now is not comparable."""
        self._near = []

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "near": list(self._near),
            "distances": list(self._distances),
            "count": self._count,
            "scale": self._scale,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what `state_dict` described."""
        self._near = list(state["near"])
        self._distances = deque(state["distances"], maxlen=WINDOW)
        self._count = int(state["count"])
        self._scale = None if state["scale"] is None else float(state["scale"])

    def _sweep_steady(self, values: FloatArray, scores: Scores, offset: int) -> int:
        """Score losses from the beginning of a cell on, with full windows; say how many."""
        series = np.concatenate((self._near, values))
        windows = sliding_window_view(series, NEAR)[: len(values)]
        level = medians(windows)
        first, second, third = windows[:, -3], windows[:, -2], windows[:, -1]
        low, high = np.minimum(first, second), np.maximum(first, second)
        expected = np.maximum(level, np.maximum(low, np.minimum(high, third)))
        distances = np.concatenate((self._distances, np.abs(values - level)))
        looks = sliding_window_view(distances, WINDOW)[: len(values) : CELL]
        of_cells = SIGMA * medians(looks)
        scale = np.repeat(of_cells, CELL)[: len(values)]
        scale = np.maximum(np.maximum(scale, _FLOOR * np.abs(level)), TINY)
        chosen = slice(offset, offset + len(values))
        scores.expected[chosen], scores.scale[chosen] = expected, scale
        scores.z[chosen], scores.stride[chosen] = (values - expected) / scale, 1.0
        self._near = series[-NEAR:].tolist()
        self._distances.extend(distances[-WINDOW:].tolist())
        self._count += len(values)
        self._scale = float(of_cells[-1])
        return len(values)
