"""Gap: how far one signal has moved away from its reference, to one side.

What both runs share, the batch above all, is in neither's favour: in public runs with the same data
order the difference of two losses scatters 15 to 30 times less than a loss by itself. So a rise of
0.02 is seen in a few steps where the loss alone would take hundreds.
"""

import copy
import math
from typing import Any, NamedTuple

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.detect.tools.baseline import Baseline, Score
from trimtab.detect.tools.expectation import Shape
from trimtab.detect.tools.running_sums import RunningSums

LENGTHS = (2, 4, 8, 16)
"""Records whose scores are added up."""
ROOTS = tuple(math.sqrt(length) for length in LENGTHS)

LIMITS = (7.0, 6.2, 5.4, 6.0)
"""What each sum, by its root, must exceed. Source: measured on a public pair of runs with the same
data order, 15,000 steps, both ways: the highest were 6.9, 5.7, 4.8 and 5.3. One record alone says
nothing: there it reached 53."""

HIGHEST = 5.0
"""Scores are cut off here before they are added: no single record decides."""

CALM_RECORDS = 1024
"""Records without a hit after which the limits are the usual ones again; until then each hit adds
them once more, because runs that have parted wander. A sum cannot exceed four times its limit, so
three hits in a row are the most."""

BATCH = 4096
"""Records that are looked at in one go."""


class Hit(NamedTuple):
    """A gap beyond its limit."""

    score: float
    limit: float
    records: int
    """How many records the score is of."""
    expected: float
    scale: float


class Gap:
    """One side of one signal; a positive gap is a move to that side."""

    def __init__(self, shape: Shape, trust: float = 1.0) -> None:
        self._baseline = Baseline(shape, lags=True)
        self._sums = RunningSums(len(LENGTHS))
        self._trust = trust
        self._hits = 0
        self._calm = 0
        """Records since the last hit."""

    def take(self, gap: float, step: int) -> Hit | None:
        """Judge one record."""
        score = self._baseline.take(gap, step)
        if score is None:
            return None
        self._pass(1)
        z = self._trust * score.z
        sums = self._sums.add(min(max(z, -HIGHEST), HIGHEST))
        for test, total in enumerate(sums):
            if total / ROOTS[test] > self._limit(test):
                return self._hit(test, total / ROOTS[test], score)
        return None

    def sweep(self, gaps: FloatArray, steps: IntArray) -> list[tuple[int, Hit]]:
        """Judge many records, as `take` would one after the other; say which are beyond."""
        hits = []
        at = 0
        while at < len(gaps):
            count = min(BATCH, max(CALM_RECORDS - self._calm, 1)) if self._hits else BATCH
            part = slice(at, at + count)
            quiet = self._pass_quietly(gaps[part], steps[part])
            at += quiet
            if at < len(gaps) and quiet < count:
                hit = self.take(float(gaps[at]), int(steps[at]))
                if hit is not None:
                    hits.append((at, hit))
                at += 1
        return hits

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "baseline": self._baseline.state_dict(),
            "sums": self._sums.state_dict(),
            "trust": self._trust,
            "hits": self._hits,
            "calm": self._calm,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the gap that `state_dict` described."""
        self._baseline.load_state_dict(state["baseline"])
        self._sums.load_state_dict(state["sums"])
        self._trust = float(state["trust"])
        self._hits, self._calm = int(state["hits"]), int(state["calm"])

    def _pass_quietly(self, gaps: FloatArray, steps: IntArray) -> int:
        """Take records in one go up to the first beyond its limit; say how many."""
        baseline, sums = copy.deepcopy(self._baseline), self._sums.copy()
        z = self._trust * baseline.sweep(gaps, steps).z
        known = ~np.isnan(z)
        cut = np.clip(z[known], -HIGHEST, HIGHEST)
        over = np.zeros(len(z), dtype=np.bool_)
        for test, total in enumerate(sums.sweep(cut)):
            over[known] |= total / ROOTS[test] > self._limit(test)
        if not over.any():
            self._baseline, self._sums = baseline, sums
            self._pass(int(known.sum()))
            return len(gaps)
        quiet = int(np.argmax(over))
        self._baseline.sweep(gaps[:quiet], steps[:quiet])
        scored = int(known[:quiet].sum())
        self._sums.sweep(cut[:scored])
        self._pass(scored)
        return quiet

    def _pass(self, records: int) -> None:
        self._calm += records
        if self._calm > CALM_RECORDS:
            self._hits = 0

    def _limit(self, test: int) -> float:
        return (1 + self._hits) * LIMITS[test]

    def _hit(self, test: int, score: float, known: Score) -> Hit:
        """The hit; from here on the new distance is the usual one, so it is told once."""
        limit = self._limit(test)
        self._baseline.restart()
        self._sums.clear()
        self._hits, self._calm = self._hits + 1, 0
        return Hit(score, limit, LENGTHS[test], known.expected, known.scale)
