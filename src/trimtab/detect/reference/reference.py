"""Reference: a run against another run over the same batches, signal by signal.

The reference is an earlier attempt at the same steps, a sibling run that was laid beside this one
(side_by_side.py), or losses that the user knows and records as `reference_loss`. A finding says
that the two have parted, not which of them is wrong.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block, FloatArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import FINGERPRINT, LOSS, REFERENCE_LOSS, REFERENCE_OF
from trimtab.detect.known_events import Known
from trimtab.detect.loss.norm_spike import logarithms
from trimtab.detect.reference.earlier_attempt import EarlierAttempt
from trimtab.detect.reference.gap import Gap, Hit
from trimtab.detect.reference.side_by_side import same_batches
from trimtab.detect.tools.baseline import FEWEST
from trimtab.detect.tools.expectation import Shape
from trimtab.detect.tools.rows import Row, Seen, Series
from trimtab.detect.trust import trust_in

LOSS_SHAPE = Shape(falls=False, relative_floor=0.0, absolute_floor=0.001)
"""For the logarithm of loss by reference. Floor: 0.1 %, for runs that are equal to the last bit up
to the moment they part."""

OTHER_SHAPE = Shape(falls=False, relative_floor=0.0, absolute_floor=0.02)
"""For the other signals. Floor: 2 %: the lab's runs in bf16 stay within it of the same
runs in fp32 (measured)."""

PARTED_RECORDS = 256
"""Where one signal has left its reference the others follow. So soon after the last one they are
noted, not alarmed; only a loss that rises further is."""

UP, DOWN = 1.0, -1.0
"""Which way a signal left its reference."""


class Reference:
    """Findings where a signal and its reference part."""

    name = "reference"
    hears = Known.NOTHING

    def __init__(self) -> None:
        self._earlier = EarlierAttempt()
        self._gaps: dict[str, tuple[Gap, Gap]] = {}
        """Of each signal: up, down."""
        self._same_batches = 0
        """In a row, up to the last."""
        self._records = 0
        self._parted: int | None = None
        """The record of the last gap."""

    def hear(self, known: Known) -> None:
        """What is planned for one run and not for the other parts them all the same."""

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        self._records += 1
        signals = row.signals
        earlier = self._earlier.take(row)
        if REFERENCE_LOSS not in signals:
            if math.isnan(earlier):
                return []
            return [
                self._graded(found, self._records) for found in self._take_pair(row, LOSS, earlier)
            ]
        if FINGERPRINT in signals and REFERENCE_OF + FINGERPRINT in signals:
            seen = Seen(row.tick, row.step, signals[FINGERPRINT])
            theirs = signals[REFERENCE_OF + FINGERPRINT]
            if seen.value != theirs:
                return self._meet_other_batch(seen, theirs)
            self._same_batches += 1
        return [
            self._graded(finding, self._records)
            for name in compared(list(signals))
            for finding in self._take_pair(row, name, signals[REFERENCE_OF + name])
        ]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        before, self._records = self._records, self._records + len(block)
        earlier = self._earlier.sweep(block)
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
            gaps += self._sweep_pair(block, name, references)
        gaps.sort(key=lambda finding: finding.tick)
        findings = [self._graded(gap, before + 1 + block.row_of(gap.tick)) for gap in gaps]
        findings += self._sweep_batches(block, given)
        return sorted(findings, key=lambda finding: finding.tick)

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "earlier": self._earlier.state_dict(),
            "same_batches": self._same_batches,
            "records": self._records,
            "parted": self._parted,
            "gaps": {
                name: [gap.state_dict() for gap in sides] for name, sides in self._gaps.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._earlier.load_state_dict(state["earlier"])
        self._same_batches = int(state["same_batches"])
        self._records, self._parted = int(state["records"]), state["parted"]
        self._gaps = {}
        for name, sides in state["gaps"].items():
            for gap, known in zip(self._gaps_of(name), sides, strict=True):
                gap.load_state_dict(known)

    def _graded(self, gap: Finding, record: int) -> Finding:
        """An alarm if it is the first in a while."""
        is_late = self._parted is not None and record - self._parted < PARTED_RECORDS
        self._parted = record
        if is_late and gap.signal != LOSS:
            return dataclasses.replace(gap, severity=Severity.INFO)
        return gap

    def _gaps_of(self, name: str, trust: float = 1.0) -> tuple[Gap, Gap]:
        if name not in self._gaps:
            shape = LOSS_SHAPE if name == LOSS else OTHER_SHAPE
            self._gaps[name] = Gap(shape, trust), Gap(shape, trust)
        return self._gaps[name]

    def _take_pair(self, row: Row, name: str, theirs: float) -> list[Finding]:
        seen = Seen(row.tick, row.step, row.signals.get(name, math.nan))
        if not (0.0 < seen.value < math.inf and 0.0 < theirs < math.inf):
            return []
        gap = math.log(seen.value / theirs)
        findings = []
        for side, way in zip(
            self._gaps_of(name, trust_in(name, row.qualities)), (UP, DOWN), strict=True
        ):
            hit = side.take(way * gap, row.step)
            if hit is not None:
                findings.append(_finding(name, way, seen, theirs, hit))
        return findings

    def _sweep_pair(self, block: Block, name: str, references: FloatArray) -> list[Finding]:
        ours = block.column(name)
        usable = ours.finite & (ours.values > 0) & np.isfinite(references) & (references > 0)
        rows = np.flatnonzero(usable)
        if not len(rows):
            return []
        series, theirs = Series.of(block, name, rows), references[rows]
        gaps = logarithms((series.value / theirs).tolist())
        sides = self._gaps_of(name, trust_in(name, block.qualities))
        return [
            _finding(name, way, series.one(at), float(theirs[at]), hit)
            for side, way in zip(sides, (UP, DOWN), strict=True)
            for at, hit in side.sweep(way * gaps, series.step)
        ]

    def _sweep_batches(self, block: Block, given: np.ndarray) -> list[Finding]:
        ours, theirs = block.column(FINGERPRINT), block.column(REFERENCE_OF + FINGERPRINT)
        findings = []
        for at in np.flatnonzero(given & ours.present & theirs.present).tolist():
            seen = Seen.at(block, at, ours.values[at])
            other = float(theirs.values[at])
            if seen.value != other:
                findings += self._meet_other_batch(seen, other)
            else:
                self._same_batches += 1
        return findings

    def _meet_other_batch(self, seen: Seen, theirs: float) -> list[Finding]:
        """Told where batches stop being the same; two runs with other data are no pair at all."""
        were_same, self._same_batches = self._same_batches, 0
        if were_same < FEWEST:
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
    """The signals that have a reference, in an order that does not depend on the log's."""
    return sorted(
        name.removeprefix(REFERENCE_OF)
        for name in names
        if name.startswith(REFERENCE_OF) and name != REFERENCE_OF + FINGERPRINT
    )


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
