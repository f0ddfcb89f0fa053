"""NoLearning: a loss that is no better than the frequency of the tokens, or than at the start.

`token_rarity` is the loss of a model that knows how often each token occurs, and nothing of the
context. A model that stays there does not use its context: attention has collapsed, the learning
rate is far too high, or signals do not get through its layers. Where it was not recorded, a run
from scratch must at least fall under the loss that it started with.
"""

import math

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS, TOKEN_RARITY
from trimtab.detect.loss.fall_from_start import FallFromStart

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
            stayed = self._fall.update(loss, record.step)
            return (
                [] if stayed is None else [self._finding(record, stayed[0], stayed[0] - stayed[1])]
            )
        self._fall.stop()
        mean = self._mean_gain(rarity - loss)
        if mean is None:
            return []
        was_reported, self._is_reported = self._is_reported, mean < NO_BETTER
        if was_reported or not self._is_reported:
            return []
        return [self._finding(record, rarity, mean)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a loss; once the run has learned, those with a rarity as well."""
        loss, rarity = block.column(LOSS).present, block.column(TOKEN_RARITY).present
        return np.flatnonzero(loss & rarity if self._fall.is_over else loss)

    def _mean_gain(self, gain: float) -> float | None:
        """Return the mean of the last gains over the token frequencies, when it is due."""
        if not math.isfinite(gain):
            return None
        self._count += 1
        if self._count <= MIN_RECORDS - RECORDS_PER_MEAN:
            return None
        self._in_mean += 1
        self._total += gain
        if self._in_mean < RECORDS_PER_MEAN:
            return None
        mean = self._total / RECORDS_PER_MEAN
        self._in_mean, self._total = 0, 0.0
        return mean

    def _finding(self, record: Record, expected: float, better_by: float) -> Finding:
        return self.finding(
            record,
            Symptom.NO_LEARNING,
            Severity.ALARM,
            LOSS,
            expected=expected,
            facts={"better_by": better_by},
        )
