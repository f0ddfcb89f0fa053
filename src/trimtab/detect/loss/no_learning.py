"""NoLearning: a loss that is no better than the frequency of the tokens, or than at the start.

`token_rarity` is the loss of a model that knows how often each token occurs, and nothing of the
context. A model that stays there does not use its context: attention has collapsed, the learning
rate is far too high, or signals do not get through its layers. Where it was not recorded, a run
from scratch must at least fall under the loss that it started with.
"""

import math

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS, TOKEN_RARITY
from trimtab.detect.loss.fall_from_start import FallFromStart
from trimtab.detect.tools.rows import Seen

NO_BETTER = 0.05
"""Nats under the loss of the token frequencies. Source: models of the lab that never learned to use
their context stay within this distance of it, in either direction."""

MIN_RECORDS, RECORDS_PER_MEAN = 384, 128
"""Records in which learning must start, and how many are averaged. Source: the slowest healthy runs
of the lab, with a batch that grows or a long warm-up, are 0.2 nats under the token frequencies
after 256 records and 0.35 after 384."""


class NoLearning(Detector):
    """One finding for a run, or for a stretch in which it has lost what it had learned."""

    name = "no-learning"

    def __init__(self) -> None:
        self._count = 0
        self._in_mean, self._total = 0, 0.0
        self._is_reported = False
        self._fall = FallFromStart()

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        loss, rarity = record.signals.get(LOSS), record.signals.get(TOKEN_RARITY)
        if loss is None:
            return []
        if rarity is None:
            if self._fall.is_over:
                return []
            finding = self._fall.update(Seen(record.tick, record.step, loss))
            return [] if finding is None else [finding]
        if not self._fall.is_over:
            self._fall.stop()
        finding = self._judge(Seen(record.tick, record.step, loss), rarity)
        return [] if finding is None else [finding]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        loss, rarity = block.column(LOSS), block.columns.get(TOKEN_RARITY)
        findings: list[Finding] = []
        if not self._fall.is_over:
            findings += self._judge_fall(block)
        if rarity is None:
            return findings
        rows = np.flatnonzero(loss.present & rarity.present)
        ticks, steps = block.tick[rows].tolist(), block.step[rows].tolist()
        seen = map(Seen, ticks, steps, loss.values[rows].tolist())
        found = map(self._judge, seen, rarity.values[rows].tolist())
        return findings + [finding for finding in found if finding is not None]

    def _judge_fall(self, block: Block) -> list[Finding]:
        """Judge the first losses; nothing is left to do once a rarity was recorded."""
        loss, rarity = block.column(LOSS), block.column(TOKEN_RARITY)
        findings: list[Finding] = []
        for row in np.flatnonzero(loss.present).tolist():
            if rarity.present[row]:
                self._fall.stop()
            if self._fall.is_over:
                break
            finding = self._fall.update(Seen.at(block, row, loss.values[row]))
            if finding is not None:
                findings.append(finding)
        return findings

    def _judge(self, seen: Seen, rarity: float) -> Finding | None:
        better = rarity - seen.value
        if not math.isfinite(better):
            return None
        self._count += 1
        if self._count <= MIN_RECORDS - RECORDS_PER_MEAN:
            return None
        self._in_mean += 1
        self._total += better
        if self._in_mean < RECORDS_PER_MEAN:
            return None
        mean = self._total / RECORDS_PER_MEAN
        self._in_mean, self._total = 0, 0.0
        was_reported, self._is_reported = self._is_reported, mean < NO_BETTER
        if was_reported or not self._is_reported:
            return None
        return Finding(
            detector=self.name,
            symptom=Symptom.NO_LEARNING,
            severity=Severity.ALARM,
            signal=LOSS,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            expected=rarity,
            facts={"better_by": mean},
        )
