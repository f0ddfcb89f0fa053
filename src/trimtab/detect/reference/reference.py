"""Reference: a run compared with another run over the same batches, signal by signal.

The reference is an earlier attempt at the same steps, another run whose values were put beside this
one (side_by_side.py), or losses that the user knows and records as `reference_loss`. A finding
states that the two have parted, not which of them is wrong.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from trimtab.core.block import Block, FloatArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import FINGERPRINT, LOSS, REFERENCE_LOSS, REFERENCE_OF
from trimtab.core.state import Parts
from trimtab.detect.loss.norm_spike import logarithms
from trimtab.detect.reference.earlier_attempt import EarlierAttempt
from trimtab.detect.reference.gap import Gap, Hit
from trimtab.detect.reference.side_by_side import same_batches
from trimtab.detect.tools.baseline import MIN_WINDOW
from trimtab.detect.tools.expectation import BaselineSpec
from trimtab.detect.tools.rows import Seen, Series
from trimtab.detect.trust import trust_in

LOSS_BASELINE = BaselineSpec(falls=False, relative_floor=0.0, absolute_floor=0.001)
"""For the logarithm of loss / reference. Floor: 0.1 %, for runs that are equal to the last bit
until they part."""

OTHER_BASELINE = BaselineSpec(falls=False, relative_floor=0.0, absolute_floor=0.02)
"""For the other signals. Floor: 2 %: runs of the lab in bf16 stay within 2 % of the same runs in
fp32 (measured)."""

PARTED_RECORDS = 256
"""Where one signal has left its reference the others follow. Within this many records after the
last one they are only notes, except for a loss that rises further."""

UP, DOWN = 1.0, -1.0
"""The direction in which a signal left its reference."""


class Reference(Detector):
    """Findings where a signal and its reference part."""

    name = "reference"
    not_rewound = ("_earlier",)

    def __init__(self) -> None:
        self._earlier = EarlierAttempt()
        self._gaps_up = Parts(_new_gap)
        self._gaps_down = Parts(_new_gap)
        """By signal."""
        self._same_batches = 0
        """In a row, up to the last record."""
        self._records = 0
        self._parted: int | None = None
        """The record of the last gap."""

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        self._records += 1
        signals = record.signals
        earlier = self._earlier.update(record)
        if REFERENCE_LOSS not in signals:
            if math.isnan(earlier):
                return []
            return [
                self._graded(found, self._records)
                for found in self._judge_pair(record, LOSS, earlier)
            ]
        if FINGERPRINT in signals and REFERENCE_OF + FINGERPRINT in signals:
            seen = Seen(record.tick, record.step, signals[FINGERPRINT])
            theirs = signals[REFERENCE_OF + FINGERPRINT]
            if seen.value != theirs:
                return self._other_batch(seen, theirs)
            self._same_batches += 1
        return [
            self._graded(finding, self._records)
            for name in compared(list(signals))
            for finding in self._judge_pair(record, name, signals[REFERENCE_OF + name])
        ]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        before, self._records = self._records, self._records + len(block)
        earlier = self._earlier.update_many(block)
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
        """The finding with its severity: a note if another signal has just parted."""
        is_late = self._parted is not None and record - self._parted < PARTED_RECORDS
        self._parted = record
        if is_late and gap.signal != LOSS:
            return dataclasses.replace(gap, severity=Severity.INFO)
        return gap

    def _sides(self, name: str, trust: float) -> Iterator[tuple[Gap, float]]:
        """The gaps of a signal, each with its direction."""
        for gaps, way in ((self._gaps_up, UP), (self._gaps_down, DOWN)):
            if name not in gaps:
                gaps[name].trust = trust
            yield gaps[name], way

    def _judge_pair(self, record: Record, name: str, theirs: float) -> list[Finding]:
        seen = Seen(record.tick, record.step, record.signals.get(name, math.nan))
        if not (0.0 < seen.value < math.inf and 0.0 < theirs < math.inf):
            return []
        gap = math.log(seen.value / theirs)
        findings = []
        for side, way in self._sides(name, trust_in(name, record.qualities)):
            hit = side.update(way * gap, record.step)
            if hit is not None:
                findings.append(_finding(name, way, seen, theirs, hit))
        return findings

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
            for at, hit in side.update_many(way * gaps, series.step)
        ]

    def _judge_batches(self, block: Block, given: np.ndarray) -> list[Finding]:
        ours, theirs = block.column(FINGERPRINT), block.column(REFERENCE_OF + FINGERPRINT)
        findings = []
        for at in np.flatnonzero(given & ours.present & theirs.present).tolist():
            seen = Seen.at(block, at, ours.values[at])
            other = float(theirs.values[at])
            if seen.value != other:
                findings += self._other_batch(seen, other)
            else:
                self._same_batches += 1
        return findings

    def _other_batch(self, seen: Seen, theirs: float) -> list[Finding]:
        """Report where batches stop being the same; two runs with different data are no pair."""
        were_same, self._same_batches = self._same_batches, 0
        if were_same < MIN_WINDOW:
            return []
        return [
            Finding(
                detector=self.name,
                symptom=Symptom.OTHER_BATCH,
                severity=Severity.ALARM,
                signal=FINGERPRINT,
                step=seen.step,
                tick=seen.tick,
                value=seen.value,
                expected=theirs,
            )
        ]


def compared(names: Sequence[str]) -> list[str]:
    """The signals that have a reference, in an order that does not depend on the log."""
    return sorted(
        name.removeprefix(REFERENCE_OF)
        for name in names
        if name.startswith(REFERENCE_OF) and name != REFERENCE_OF + FINGERPRINT
    )


def _new_gap(name: str) -> Gap:
    return Gap(LOSS_BASELINE if name == LOSS else OTHER_BASELINE)


def _finding(name: str, way: float, seen: Seen, theirs: float, hit: Hit) -> Finding:
    is_good_news = name == LOSS and way == DOWN
    usual = theirs * math.exp(way * hit.expected)
    room = hit.limit / math.sqrt(hit.records) * hit.scale
    return Finding(
        detector=Reference.name,
        symptom=Symptom.REFERENCE_GAP,
        severity=Severity.WARN if is_good_news else Severity.ALARM,
        signal=name,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        expected=usual,
        limit=usual * math.exp(way * room),
        facts={"score": hit.score, "records": float(hit.records), "reference": theirs},
    )
