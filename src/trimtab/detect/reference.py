"""A run compared with a run over the same batches.

Reference       the detector: where the loss leaves its reference
Gap             how far the loss has moved away from its reference
EarlierAttempt  the losses of the attempt before, as a reference
"""

import copy
import math
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from trimtab.core.block import NO_POSITION, Block, FloatArray, IntArray
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import FINGERPRINT, LOSS, REFERENCE_LOSS
from trimtab.core.state import Stateful
from trimtab.detect.loss.norm_spike import logarithms
from trimtab.detect.tools.baseline import BaselineSpec, SignalBaseline, trust_in
from trimtab.detect.tools.series import Point, RunningSums, Series, last_rows

# EarlierAttempt: the losses of the attempt before this one, by step, as a reference.
#
#     attempt 0:   100 101 102 103 104 |killed
#     attempt 1:               102 103 104 105 ...
#                              '---------' trained on before
#
# Two batches are the same if their fingerprints are, or their data positions; where neither is
# known, if their steps are.

STEPS_REMEMBERED = 2048
"""Steps of each attempt that are remembered: more are seldom repeated."""

Batch = tuple[float, float, int]
"""Loss, fingerprint (NaN if unknown) and data position."""


class EarlierAttempt(Stateful):
    """Remembers the finite losses of this attempt and of the one before."""

    def __init__(self) -> None:
        self._attempt = 0
        self._before: dict[int, Batch] = {}
        self._now: dict[int, Batch] = {}

    def update(self, block: Block) -> FloatArray:
        """Return the loss of the same batch in the attempt before, of each record; NaN without."""
        references = np.full(len(block), np.nan)
        loss = block.column(LOSS)
        columns = (loss.values, block.column(FINGERPRINT).values, block.data_position)

        def batches(rows: IntArray) -> Iterator[tuple[int, Batch]]:
            found = zip(*(column[rows].tolist() for column in columns), strict=True)
            return zip(block.step[rows].tolist(), found, strict=True)

        borders = [0, *(np.flatnonzero(np.diff(block.attempt)) + 1).tolist(), len(block)]
        for first, last in pairwise(borders):
            if first == last:
                continue
            if block.attempt[first] != self._attempt:
                self._attempt = int(block.attempt[first])
                self._before, self._now = self._now, {}
            rows = first + np.flatnonzero(loss.finite[first:last])
            if self._before:
                known = rows[np.isin(block.step[rows], list(self._before))]
                references[known] = [
                    self._before[step][0] if _is_same(self._before[step], batch) else np.nan
                    for step, batch in batches(known)
                ]
            newest = np.sort(last_rows(block.step[rows]))[-STEPS_REMEMBERED:]
            for step, batch in batches(rows[newest]):
                self._now.pop(step, None)  # the newest come last
                self._now[step] = batch
            for step in list(islice(self._now, max(len(self._now) - STEPS_REMEMBERED, 0))):
                del self._now[step]
        return references


def _is_same(one: Batch, other: Batch) -> bool:
    _, mark, position = one
    _, other_mark, other_position = other
    if mark == mark and other_mark == other_mark:
        return mark == other_mark
    if NO_POSITION in (position, other_position):
        return True
    return position == other_position


# Gap: how far the loss has moved away from its reference, to one side.
#
# What both runs share, above all the batch, cancels: in public runs with the same data order the
# difference of two losses scatters 15 to 30 times less than one loss. So a rise of 0.02 is found in
# a few steps where the loss alone would take hundreds.

LENGTHS = (2, 4, 8, 16)
"""Records whose scores are summed."""
ROOTS = np.sqrt(LENGTHS)[:, None]

LIMITS = np.array([7.0, 6.2, 5.4, 6.0])[:, None]
"""What each sum, divided by the root of its length, must exceed. Source: measured on a public pair
of runs with the same data order, 15,000 steps, both ways: the highest were 6.9, 5.7, 4.8 and 5.3. A
single record means nothing: there it reached 53."""

HIGHEST = 5.0
"""Scores are clipped here before they are added: no single record decides."""

CALM_RECORDS = 1024
"""Records without a hit after which the limits are the usual ones again; until then each hit adds
the limit once more, because runs that have separated wander. A sum cannot exceed four times its
limit, so there are at most three hits in a row."""

RECORDS_AT_ONCE = 4096
"""Records that are judged at once."""

BASELINE = BaselineSpec(falls=False, relative_floor=0.0, absolute_floor=0.001)
"""For the logarithm of loss / reference. Floor: 0.1 %, for runs that are equal to the last bit
until they differ."""


class Hit(NamedTuple):
    """A gap beyond its limit."""

    score: float
    limit: float
    records: int
    """Number of records in the score."""
    expected: float
    scale: float


class Gap(Stateful):
    """One side of the loss; a positive gap is a move to that side."""

    def __init__(self) -> None:
        self._baseline = SignalBaseline(BASELINE, lags=True)
        self._sums = RunningSums(len(LENGTHS))
        self._hits = 0
        self._calm = 0
        """Scored records since the last hit."""

    def update(self, gaps: FloatArray, steps: IntArray, trust: float) -> list[tuple[int, Hit]]:
        """Judge the next gaps; return those beyond their limit, each with its index.

        Scores are multiplied by `trust`.
        """
        hits = []
        at = 0
        while at < len(gaps):
            if self._calm >= CALM_RECORDS:
                self._hits = 0
            part = slice(at, at + (CALM_RECORDS - self._calm if self._hits else RECORDS_AT_ONCE))
            judged, hit = self._judge(gaps[part], steps[part], trust)
            at += judged
            if hit is not None:
                hits.append((at - 1, hit))
        return hits

    def _judge(self, gaps: FloatArray, steps: IntArray, trust: float) -> tuple[int, Hit | None]:
        """Judge gaps up to the first beyond its limit; return how many, and that one."""
        baseline, sums = copy.deepcopy(self._baseline), self._sums.copy()
        scores = baseline.update_many(gaps, steps)
        known = np.flatnonzero(~np.isnan(scores.z))
        z = np.clip(trust * scores.z[known], -HIGHEST, HIGHEST)
        means = np.array(sums.add_many(z)) / ROOTS
        limits = (1 + self._hits) * LIMITS
        over = means > limits
        if not over.any():
            self._baseline, self._sums = baseline, sums
            self._calm += len(known)
            return len(gaps), None
        first = int(np.argmax(over.any(axis=0)))
        test, row = int(np.argmax(over[:, first])), int(known[first])
        # From here on the new distance is the usual one.
        self._baseline.update_many(gaps[: row + 1], steps[: row + 1])
        self._baseline.restart()
        self._sums.clear()
        self._hits, self._calm = self._hits + 1, 0
        return row + 1, Hit(
            score=float(means[test, first]),
            limit=float(limits[test, 0]),
            records=LENGTHS[test],
            expected=float(scores.expected[row]),
            scale=float(scores.scale[row]),
        )


# Reference: the loss compared with that of another run over the same batches.
#
# The reference is an earlier attempt at the same steps, or losses that the user knows and records
# as `reference_loss`. A finding states that the two differ now, not which of them is wrong.

UP, DOWN = 1.0, -1.0
"""The direction in which the loss left its reference."""


class Reference(Detector):
    """Findings where the loss leaves its reference."""

    name = "reference"

    def __init__(self) -> None:
        self._earlier = EarlierAttempt()
        self._up, self._down = Gap(), Gap()

    def update_many(self, block: Block) -> list[Finding]:
        ours, given = block.column(LOSS), block.column(REFERENCE_LOSS)
        references = np.where(given.present, given.values, self._earlier.update(block))
        usable = ours.finite & (ours.values > 0) & np.isfinite(references) & (references > 0)
        rows = np.flatnonzero(usable)
        if not len(rows):
            return []
        series, theirs = Series.of(block, LOSS, rows), references[rows]
        gaps = logarithms((series.value / theirs).tolist())
        trust = trust_in(LOSS, block.qualities)
        findings = [
            _finding(way, series.one(at), float(theirs[at]), hit)
            for side, way in ((self._up, UP), (self._down, DOWN))
            for at, hit in side.update(way * gaps, series.step, trust)
        ]
        return sorted(findings, key=lambda finding: finding.tick)


def _finding(way: float, point: Point, theirs: float, hit: Hit) -> Finding:
    usual = theirs * math.exp(way * hit.expected)
    room = hit.limit / math.sqrt(hit.records) * hit.scale
    return point.finding(
        Reference.name,
        Symptom.REFERENCE_GAP,
        Severity.WARN if way == DOWN else Severity.ALARM,
        LOSS,
        expected=usual,
        limit=usual * math.exp(way * room),
        facts={"score": hit.score, "records": float(hit.records), "reference": theirs},
    )
