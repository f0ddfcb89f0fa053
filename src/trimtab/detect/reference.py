"""A run compared with a run over the same batches.

Reference       the detector: where a signal leaves its reference
Gap             how far one signal has moved away from its reference
EarlierAttempt  the losses of the attempt before, as a reference
align_to_reference      the values of another run in columns beside this one
"""

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from trimtab.core.block import NO_POSITION, Block, BoolArray, Column, FloatArray, IntArray
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import CLOCKS, FINGERPRINT, LOSS, REFERENCE_LOSS, REFERENCE_OF
from trimtab.core.state import Stateful, StatefulDict
from trimtab.detect.loss.norm_spike import logarithms
from trimtab.detect.tools.baseline import MIN_WINDOW, BaselineSpec, SignalBaseline, trust_in
from trimtab.detect.tools.series import Point, RunningSums, Series, align, last_rows

# A run beside another one: what the other recorded at the same batch, in extra columns.
#
#     run:        step  loss  grad_norm  ...           at the same step in the reference
#     becomes:    step  loss  grad_norm  ...  reference_loss  reference_grad_norm  ...
#
# Batches are the same if their fingerprints are; where one of the two has none, if their steps are.


def align_to_reference(run: Block, reference: Block) -> Block:
    """Return the run with the values that the reference has at the same steps."""
    if not len(reference):
        return run
    latest = last_rows(reference.step)
    is_known, places = align(run.step, reference.step[latest])
    rows = latest[places]
    columns = dict(run.columns)
    for name, column in reference.columns.items():
        if name not in run.columns or name in CLOCKS or name.startswith(REFERENCE_OF):
            continue
        present = is_known & column.present[rows]
        columns[REFERENCE_OF + name] = Column(
            np.where(present, column.values[rows], np.nan), present
        )
    return dataclasses.replace(run, columns=columns)


def same_batches(beside: Block) -> BoolArray:
    ours, theirs = beside.column(FINGERPRINT), beside.column(REFERENCE_OF + FINGERPRINT)
    known = ours.present & theirs.present
    return np.asarray(~known | (ours.values == theirs.values))


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


# Gap: how far one signal has moved away from its reference, to one side.
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
        self._baseline = SignalBaseline(spec, lags=True)
        self._sums = RunningSums(len(LENGTHS))
        self.trust = 1.0
        """In the values of the signal: a score is multiplied by it."""
        self._hits = 0
        self._calm = 0
        """Scored records since the last hit."""

    def update(self, gaps: FloatArray, steps: IntArray) -> list[tuple[int, Hit]]:
        """Judge the next gaps; return those beyond their limit, each with its index."""
        hits = []
        at = 0
        while at < len(gaps):
            if self._calm >= CALM_RECORDS:
                self._hits = 0
            part = slice(at, at + (CALM_RECORDS - self._calm if self._hits else RECORDS_AT_ONCE))
            judged, hit = self._judge(gaps[part], steps[part])
            at += judged
            if hit is not None:
                hits.append((at - 1, hit))
        return hits

    def _judge(self, gaps: FloatArray, steps: IntArray) -> tuple[int, Hit | None]:
        """Judge gaps up to the first beyond its limit; return how many, and that one."""
        baseline, sums = copy.deepcopy(self._baseline), self._sums.copy()
        scores = baseline.update_many(gaps, steps)
        known = np.flatnonzero(~np.isnan(scores.z))
        z = np.clip(self.trust * scores.z[known], -HIGHEST, HIGHEST)
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


# Reference: a run compared with another run over the same batches, signal by signal.
#
# The reference is an earlier attempt at the same steps, another run whose values were laid beside
# this one (`align_to_reference`), or losses that the user knows and records as `reference_loss`. A
# finding states that the two differ now, not which of them is wrong.

LOSS_GAP_BASELINE = BaselineSpec(falls=False, relative_floor=0.0, absolute_floor=0.001)
"""For the logarithm of loss / reference. Floor: 0.1 %, for runs that are equal to the last bit
until they differ."""

OTHER_GAP_BASELINE = BaselineSpec(falls=False, relative_floor=0.0, absolute_floor=0.02)
"""For the other signals. Floor: 2 %: runs of the lab in bf16 stay within 2 % of the same runs in
fp32 (measured)."""

FOLLOWING_RECORDS = 256
"""Where one signal has left its reference the others follow. Within this many records after the
last one they are only notes, except for a loss that rises further."""

UP, DOWN = 1.0, -1.0
"""The direction in which a signal left its reference."""


class Reference(Detector):
    """Findings where a signal leaves its reference."""

    name = "reference"

    def __init__(self) -> None:
        self._earlier = EarlierAttempt()
        self._gaps_up = StatefulDict(_new_gap)
        self._gaps_down = StatefulDict(_new_gap)
        """By signal."""
        self._same_batches = 0
        """In a row, up to the last record."""
        self._records = 0
        self._last_gap: int | None = None
        """The record of the last gap."""

    def update_many(self, block: Block) -> list[Finding]:
        before, self._records = self._records, self._records + len(block)
        earlier = self._earlier.update(block)
        given = block.column(REFERENCE_LOSS).present
        if not given.any() and np.isnan(earlier).all():
            return []
        same = same_batches(block)
        gaps: list[Finding] = []
        for name in compared(list(block.columns)) or [LOSS]:
            theirs = block.column(REFERENCE_OF + name)
            references = np.where(given & same & theirs.present, theirs.values, np.nan)
            if name == LOSS:
                references = np.where(given, references, earlier)
            gaps += self._judge_pairs(block, name, references)
        gaps.sort(key=lambda finding: finding.tick)
        findings = [self._graded(gap, before + 1 + block.row_of(gap.tick)) for gap in gaps]
        findings += self._judge_batches(block, given)
        return sorted(findings, key=lambda finding: finding.tick)

    def _graded(self, gap: Finding, record: int) -> Finding:
        """Return the finding with its severity: a note if another signal has just left."""
        is_late = self._last_gap is not None and record - self._last_gap < FOLLOWING_RECORDS
        self._last_gap = record
        if is_late and gap.signal != LOSS:
            return dataclasses.replace(gap, severity=Severity.INFO)
        return gap

    def _sides(self, name: str, trust: float) -> Iterator[tuple[Gap, float]]:
        for gaps, way in ((self._gaps_up, UP), (self._gaps_down, DOWN)):
            if name not in gaps:
                gaps[name].trust = trust
            yield gaps[name], way

    def _judge_pairs(self, block: Block, name: str, references: FloatArray) -> list[Finding]:
        ours = block.column(name)
        usable = ours.finite & (ours.values > 0) & np.isfinite(references) & (references > 0)
        rows = np.flatnonzero(usable)
        if not len(rows):
            return []
        series, theirs = Series.of(block, name, rows), references[rows]
        gaps = logarithms((series.value / theirs).tolist())
        sides = self._sides(name, trust_in(name, block.qualities))
        return [
            _finding(name, way, series.one(at), float(theirs[at]), hit)
            for side, way in sides
            for at, hit in side.update(way * gaps, series.step)
        ]

    def _judge_batches(self, block: Block, given: np.ndarray) -> list[Finding]:
        ours, theirs = block.column(FINGERPRINT), block.column(REFERENCE_OF + FINGERPRINT)
        findings = []
        for at in np.flatnonzero(given & ours.present & theirs.present).tolist():
            point = Point.at(block, at, ours.values[at])
            other = float(theirs.values[at])
            if point.value != other:
                findings += self._other_batch(point, other)
            else:
                self._same_batches += 1
        return findings

    def _other_batch(self, point: Point, theirs: float) -> list[Finding]:
        """Report where batches stop being the same; two runs with different data are no pair."""
        were_same, self._same_batches = self._same_batches, 0
        if were_same < MIN_WINDOW:
            return []
        return [
            point.finding(
                self.name,
                Symptom.OTHER_BATCH,
                Severity.ALARM,
                FINGERPRINT,
                expected=theirs,
            )
        ]


def compared(names: Sequence[str]) -> list[str]:
    """Return the signals that have a reference, in an order that does not depend on the log."""
    return sorted(
        name.removeprefix(REFERENCE_OF)
        for name in names
        if name.startswith(REFERENCE_OF) and name != REFERENCE_OF + FINGERPRINT
    )


def _new_gap(name: str) -> Gap:
    return Gap(LOSS_GAP_BASELINE if name == LOSS else OTHER_GAP_BASELINE)


def _finding(name: str, way: float, point: Point, theirs: float, hit: Hit) -> Finding:
    is_good_news = name == LOSS and way == DOWN
    usual = theirs * math.exp(way * hit.expected)
    room = hit.limit / math.sqrt(hit.records) * hit.scale
    return point.finding(
        Reference.name,
        Symptom.REFERENCE_GAP,
        Severity.WARN if is_good_news else Severity.ALARM,
        name,
        expected=usual,
        limit=usual * math.exp(way * room),
        facts={"score": hit.score, "records": float(hit.records), "reference": theirs},
    )
