"""Gap: how far one signal has moved away from its reference, to one side.

What both runs share, above all the batch, cancels: in public runs with the same data order the
difference of two losses scatters 15 to 30 times less than one loss. So a rise of 0.02 is found in a
few steps where the loss alone would take hundreds.
"""

import copy
import math
from typing import NamedTuple

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import Baseline, Score
from trimtab.detect.tools.expectation import BaselineSpec
from trimtab.detect.tools.running_sums import RunningSums

LENGTHS = (2, 4, 8, 16)
"""Records whose scores are summed."""
ROOTS = tuple(math.sqrt(length) for length in LENGTHS)

LIMITS = (7.0, 6.2, 5.4, 6.0)
"""What each sum, divided by the root of its length, must exceed. Source: measured on a public pair
of runs with the same data order, 15,000 steps, both ways: the highest were 6.9, 5.7, 4.8 and 5.3. A
single record means nothing: there it reached 53."""

HIGHEST = 5.0
"""Scores are clipped here before they are added: no single record decides."""

CALM_RECORDS = 1024
"""Records without a hit after which the limits are the usual ones again; until then each hit adds
the limit once more, because runs that have parted wander. A sum cannot exceed four times its limit,
so there are at most three hits in a row."""

RECORDS_AT_ONCE = 4096
"""Records that are judged at once."""


class Hit(NamedTuple):
    """A gap beyond its limit."""

    score: float
    limit: float
    records: int
    """Number of records in the score."""
    expected: float
    scale: float


class Gap(Stateful):
    """One side of one signal; a positive gap is a move to that side."""

    def __init__(self, spec: BaselineSpec) -> None:
        self._baseline = Baseline(spec, lags=True)
        self._sums = RunningSums(len(LENGTHS))
        self.trust = 1.0
        """In the values of the signal: a score is multiplied by it."""
        self._hits = 0
        self._calm = 0
        """Records since the last hit."""

    def update(self, gap: float, step: int) -> Hit | None:
        """Judge one record."""
        score = self._baseline.update(gap, step)
        if score is None:
            return None
        self._pass(1)
        z = self.trust * score.z
        sums = self._sums.add(min(max(z, -HIGHEST), HIGHEST))
        for test, total in enumerate(sums):
            if total / ROOTS[test] > self._limit(test):
                return self._hit(test, total / ROOTS[test], score)
        return None

    def update_many(self, gaps: FloatArray, steps: IntArray) -> list[tuple[int, Hit]]:
        """Judge many records, as `update` would one by one; return those beyond their limit."""
        hits = []
        at = 0
        while at < len(gaps):
            count = RECORDS_AT_ONCE
            if self._hits:  # the limits are lower again after the calm records
                count = min(count, max(CALM_RECORDS - self._calm, 1))
            part = slice(at, at + count)
            quiet = self._pass_quietly(gaps[part], steps[part])
            at += quiet
            if at < len(gaps) and quiet < count:
                hit = self.update(float(gaps[at]), int(steps[at]))
                if hit is not None:
                    hits.append((at, hit))
                at += 1
        return hits

    def _pass_quietly(self, gaps: FloatArray, steps: IntArray) -> int:
        """Pass the records before the first beyond its limit; return how many."""
        baseline, sums = copy.deepcopy(self._baseline), self._sums.copy()
        z = self.trust * baseline.update_many(gaps, steps).z
        known = ~np.isnan(z)
        clipped = np.clip(z[known], -HIGHEST, HIGHEST)
        over = np.zeros(len(z), dtype=np.bool_)
        for test, total in enumerate(sums.add_many(clipped)):
            over[known] |= total / ROOTS[test] > self._limit(test)
        if not over.any():
            self._baseline, self._sums = baseline, sums
            self._pass(int(known.sum()))
            return len(gaps)
        quiet = int(np.argmax(over))
        self._baseline.update_many(gaps[:quiet], steps[:quiet])
        scored = int(known[:quiet].sum())
        self._sums.add_many(clipped[:scored])
        self._pass(scored)
        return quiet

    def _pass(self, records: int) -> None:
        self._calm += records
        if self._calm > CALM_RECORDS:
            self._hits = 0

    def _limit(self, test: int) -> float:
        return (1 + self._hits) * LIMITS[test]

    def _hit(self, test: int, score: float, known: Score) -> Hit:
        """The hit; from here on the new distance is the usual one, so it is reported once."""
        limit = self._limit(test)
        self._baseline.restart()
        self._sums.clear()
        self._hits, self._calm = self._hits + 1, 0
        return Hit(score, limit, LENGTHS[test], known.expected, known.scale)
