"""MixShift: a mix of data that has changed for good, by less than batches differ from each other.

    means of 8 records:   [ ---- 24 before ---- ][ ---- 24 newest ---- ]    compared by Student's t

The rarity of tokens and the share of distinct ones do not depend on the weights. Both must have
moved: counts of tokens start again at a resume, and that moves the rarity alone. `token-mix` finds
a large change earlier.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import Block, FloatArray, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import TOKEN_RARITY, UNIQUE_TOKEN_SHARE
from trimtab.detect.tools.rows import Seen

RECORDS_PER_MEAN, MEANS = 8, 24
"""Records that are averaged, and means on each side of the comparison. Source: 8 and 16 newest
means find one and two shifts fewer of 13 in the lab."""

SHARE_LIMIT, RARITY_LIMIT = 4.0, 5.5
"""Values of t beyond which a signal has moved. Source: 175 healthy runs of the lab reach 3.2 and
4.9; of 13 runs whose mix changes without notice 10 are over 4.3 and 7.1. By chance shuffled data
exceeds the first limit alone in one of 4,000 comparisons."""

MIN_SIDE = 8
"""Means that the change is at least away from both ends. Chosen."""


class MixShift(Detector):
    """One finding when both token statistics have moved to a different level."""

    name = "mix-shift"
    listens_to = KnownChange.CHANGED
    skips_odd_batches = True

    def __init__(self) -> None:
        self._count, self._totals = 0, (0.0, 0.0)
        self._means: list[tuple[float, float]] = []
        """Of the share and the rarity."""
        self._first_ticks: list[int] = []
        """Of the records of each mean."""

    def on_event(self, change: KnownChange) -> None:
        """A planned change of the mix or of the batch."""
        self._restart()

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        share = record.signals.get(UNIQUE_TOKEN_SHARE, math.nan)
        rarity = record.signals.get(TOKEN_RARITY, math.nan)
        if not (0.0 <= share <= 1.0 and 0.0 <= rarity < _MAX_RARITY):
            return []
        found = self._add(Seen(record.tick, record.step, share), rarity)
        return [] if found is None else [found]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        share, rarity = block.column(UNIQUE_TOKEN_SHARE), block.column(TOKEN_RARITY)
        with np.errstate(invalid="ignore"):
            good = share.present & (share.values >= 0) & (share.values <= 1)
            good &= rarity.present & (rarity.values >= 0) & (rarity.values < _MAX_RARITY)
        rows = np.flatnonzero(good)
        shares, rarities, ticks = share.values[rows], rarity.values[rows], block.tick[rows]
        findings = []
        at = 0
        while at < len(rows):
            done = self._pass_quietly(shares[at:], rarities[at:], ticks[at:])
            if not done:  # a mean is half done, the memory is filling, or there may be a shift
                done = min(RECORDS_PER_MEAN - self._count, len(rows) - at)
                for place in range(at, at + done):
                    seen = Seen.at(block, int(rows[place]), shares[place])
                    found = self._add(seen, float(rarities[place]))
                    if found is not None:
                        findings.append(found)
            at += done
        return findings

    def _pass_quietly(self, shares: FloatArray, rarities: FloatArray, ticks: IntArray) -> int:
        """Pass the whole means before the first that may show a shift; return how many records."""
        cells = min(len(shares) // RECORDS_PER_MEAN, _MEANS_AT_ONCE)
        if not cells or self._count or len(self._means) < 2 * MEANS - 1:
            return 0
        count = cells * RECORDS_PER_MEAN
        pairs = np.column_stack((_means_of(shares[:count]), _means_of(rarities[:count])))
        known = np.concatenate((self._means, pairs))
        windows = sliding_window_view(known[:, 0], 2 * MEANS)
        before, newest = windows[:, :MEANS], windows[:, MEANS:]
        error = np.sqrt((before.var(axis=1) + newest.var(axis=1)) / (MEANS - 1))
        room = 0.99 * SHARE_LIMIT * error  # the exact test rounds differently
        may_shift = ~(np.abs(newest.mean(axis=1) - before.mean(axis=1)) < room)
        if may_shift.any():
            cells = int(np.argmax(may_shift))
            if not cells:
                return 0
        count = cells * RECORDS_PER_MEAN
        first_ticks = [*self._first_ticks, *ticks[:count:RECORDS_PER_MEAN].tolist()]
        self._first_ticks = first_ticks[1 - 2 * MEANS :]
        last = known[: 2 * MEANS - 1 + cells][1 - 2 * MEANS :].tolist()
        self._means = [(share, rarity) for share, rarity in last]
        return count

    def _restart(self) -> None:
        self._count, self._totals = 0, (0.0, 0.0)
        self._means, self._first_ticks = [], []

    def _add(self, seen: Seen, rarity: float) -> Finding | None:
        if not self._count:
            self._first_ticks.append(seen.tick)
        self._count += 1
        self._totals = self._totals[0] + seen.value, self._totals[1] + rarity
        if self._count < RECORDS_PER_MEAN:
            return None
        self._means.append((self._totals[0] / RECORDS_PER_MEAN, self._totals[1] / RECORDS_PER_MEAN))
        self._count, self._totals = 0, (0.0, 0.0)
        if len(self._means) < 2 * MEANS:
            return None
        shares, rarities = zip(*self._means, strict=True)
        share_t = _student_t(shares)
        if abs(share_t) > SHARE_LIMIT:
            rarity_t = _student_t(rarities)
            if abs(rarity_t) > RARITY_LIMIT:
                found = self._finding(seen, share_t, rarity_t)
                self._restart()
                return found
        del self._means[0], self._first_ticks[0]
        return None

    def _finding(self, seen: Seen, share_t: float, rarity_t: float) -> Finding:
        return Finding(
            detector=self.name,
            symptom=Symptom.TEXT_CHANGED,
            severity=Severity.ALARM,
            signal=UNIQUE_TOKEN_SHARE,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            onset_tick=self._first_ticks[_change_point(self._means)],
            facts={"share_t": share_t, "rarity_t": rarity_t},
        )


_MAX_RARITY = 1e6
"""In nats; more is damage, and its square would overflow."""

_MEANS_AT_ONCE = 1024
"""Means that are compared at once: one that may show a shift wastes the work on those after it."""


def _means_of(values: FloatArray) -> FloatArray:
    """The means of whole groups of records, added in order as `update` does."""
    grouped = values.reshape(-1, RECORDS_PER_MEAN)
    return np.asarray(np.add.accumulate(grouped, axis=1)[:, -1] / RECORDS_PER_MEAN)


def _student_t(means: Sequence[float]) -> float:
    """How far the newest half is from the half before, by the scatter within both; 0 if none."""
    before, newest = means[:MEANS], means[MEANS:]
    middle, level = math.fsum(before) / MEANS, math.fsum(newest) / MEANS
    squares = math.fsum((value - middle) ** 2 for value in before)
    squares += math.fsum((value - level) ** 2 for value in newest)
    error = math.sqrt(2 * squares / (2 * MEANS - 2) / MEANS)
    return (level - middle) / error if error > 0 else 0.0


def _change_point(means: Sequence[tuple[float, float]]) -> int:
    """The place of the first mean after the change: where the two sides differ most.

    Source: the estimate of least squares for one change of level, for both signals together.
    """
    gains = [0.0] * len(means)
    for values in zip(*means, strict=True):
        middle = math.fsum(values) / len(values)
        spread = math.fsum((value - middle) ** 2 for value in values)
        for place in range(MIN_SIDE, len(values) - MIN_SIDE + 1):
            excess = math.fsum(values[:place]) - place * middle
            gains[place] += excess**2 / (place * (len(values) - place) * spread)
    return gains.index(max(gains))
