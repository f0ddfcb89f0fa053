"""The kind of text changes: at once (TokenMix), or by less than batches differ (TokenMixShift)."""

import math
from collections.abc import Sequence

from trimtab.core.block import Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import TOKEN_RARITY, UNIQUE_TOKEN_SHARE
from trimtab.detect.tools.range_test import RangeSpec, RangeTest

# TokenMix: data that has become a different kind of text.
#
# The share of distinct tokens in a batch does not depend on the model. When its means leave the
# range that they had, the mix of sources has changed; an announced change restarts the range.

RECORDS_PER_MEAN = 8
"""Records that are averaged."""

RANGE = RangeSpec(before=24, newest=6)
"""Any distance is enough: in shuffled data that happens by chance once in 2.4 million records."""


class TokenMix(Detector):
    """One finding when the mix of tokens has changed."""

    name = "token-mix"
    needs = UNIQUE_TOKEN_SHARE
    listens_to = KnownChange.CHANGED
    skips_odd_batches = True

    def __init__(self) -> None:
        self._range = RangeTest(RANGE)
        self._count, self._total = 0, 0.0

    def on_event(self, change: KnownChange) -> None:
        """Start again: the mix or the batch was changed on purpose."""
        self._range.restart()
        self._count, self._total = 0, 0.0

    def update(self, record: Record) -> list[Finding]:
        value = record.signals.get(UNIQUE_TOKEN_SHARE)
        if value is None or not 0.0 <= value <= 1.0:
            return []
        self._count += 1
        self._total += value
        if self._count < RECORDS_PER_MEAN:
            return []
        found = self._range.update(self._total / RECORDS_PER_MEAN)
        self._count, self._total = 0, 0.0
        if found is None:
            return []
        facts = {"mean": found.value, "least_before": found.low, "most_before": found.high}
        return [
            self.finding(
                record, Symptom.TEXT_CHANGED, Severity.ALARM, UNIQUE_TOKEN_SHARE, facts=facts
            )
        ]


# TokenMixShift: a mix of data that has changed for good, by less than batches differ.
#
#   means of 8 records:   [ ---- 24 before ---- ][ ---- 24 newest ---- ]    compared by Student's t
#
# The rarity of tokens and the share of distinct ones do not depend on the weights. Both must have
# moved: counts of tokens start again at a resume, and that moves the rarity alone. `token-mix`
# finds a large change earlier.

MEANS = 24
"""Means on each side of the comparison. Source: 8 and 16 newest
means find one and two shifts fewer of 13 in the lab."""

SHARE_LIMIT, RARITY_LIMIT = 4.0, 5.5
"""Values of t beyond which a signal has moved. Source: 175 healthy runs of the lab reach 3.2 and
4.9; of 13 runs whose mix changes without notice 10 are over 4.3 and 7.1. By chance shuffled data
exceeds the first limit alone in one of 4,000 comparisons."""

MIN_SIDE = 8
"""Means that the change is at least away from both ends. Chosen."""


class TokenMixShift(Detector):
    """One finding when both token statistics have moved to a different level."""

    name = "mix-shift"
    needs = TOKEN_RARITY
    listens_to = KnownChange.CHANGED
    skips_odd_batches = True

    def __init__(self) -> None:
        self._count, self._totals = 0, (0.0, 0.0)
        self._means: list[tuple[float, float]] = []
        """Of the share and the rarity."""
        self._first_ticks: list[int] = []
        """Of the records of each mean."""

    def on_event(self, change: KnownChange) -> None:
        """Start again: the mix or the batch was changed on purpose."""
        self._restart()

    def update(self, record: Record) -> list[Finding]:
        share = record.signals.get(UNIQUE_TOKEN_SHARE, math.nan)
        rarity = record.signals.get(TOKEN_RARITY, math.nan)
        if not (0.0 <= share <= 1.0 and 0.0 <= rarity < _MAX_RARITY):
            return []
        if not self._count:
            self._first_ticks.append(record.tick)
        self._count += 1
        self._totals = self._totals[0] + share, self._totals[1] + rarity
        if self._count < RECORDS_PER_MEAN:
            return []
        self._means.append((self._totals[0] / RECORDS_PER_MEAN, self._totals[1] / RECORDS_PER_MEAN))
        self._count, self._totals = 0, (0.0, 0.0)
        if len(self._means) < 2 * MEANS:
            return []
        shares, rarities = zip(*self._means, strict=True)
        share_t = _student_t(shares)
        if abs(share_t) > SHARE_LIMIT:
            rarity_t = _student_t(rarities)
            if abs(rarity_t) > RARITY_LIMIT:
                found = self._finding(record, share_t, rarity_t)
                self._restart()
                return [found]
        del self._means[0], self._first_ticks[0]
        return []

    def _restart(self) -> None:
        self._count, self._totals = 0, (0.0, 0.0)
        self._means, self._first_ticks = [], []

    def _finding(self, record: Record, share_t: float, rarity_t: float) -> Finding:
        return self.finding(
            record,
            Symptom.TEXT_CHANGED,
            Severity.ALARM,
            UNIQUE_TOKEN_SHARE,
            onset_tick=self._first_ticks[_change_point(self._means)],
            facts={"share_t": share_t, "rarity_t": rarity_t},
        )


_MAX_RARITY = 1e6
"""In nats; more is damage, and its square would overflow."""


def _student_t(means: Sequence[float]) -> float:
    """Return how far the newest half is from the one before, by the scatter of both."""
    before, newest = means[:MEANS], means[MEANS:]
    middle, level = math.fsum(before) / MEANS, math.fsum(newest) / MEANS
    squares = math.fsum((value - middle) ** 2 for value in before)
    squares += math.fsum((value - level) ** 2 for value in newest)
    error = math.sqrt(2 * squares / (2 * MEANS - 2) / MEANS)
    return (level - middle) / error if error > 0 else 0.0


def _change_point(means: Sequence[tuple[float, float]]) -> int:
    """Return the place of the first mean after the change: where the two sides differ most.

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
