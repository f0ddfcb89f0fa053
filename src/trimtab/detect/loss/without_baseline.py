"""Losses that are judged without a baseline: at the start of a run, and at a resume.

GrossLoss   a loss beyond all measure before the baseline is known
ResumeGap   a loss that is higher after a resume than before
NoLearning  a loss no better than the frequency of tokens, or than at the start of the run
"""

import math

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import median, sigma_around
from trimtab.core.signals import LOSS, TOKEN_RARITY
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import MIN_WINDOW, RECORDS_PER_CELL

# GrossLoss: a loss that is beyond all measure while its baseline is not known yet.
#
# Before a baseline has its first 24 losses, and again after a planned change, only a loss many
# times larger than the ones before can be called wrong. No healthy start comes near.

NUM_JUDGED = MIN_WINDOW + 2 * RECORDS_PER_CELL
"""Losses until the baseline of the loss is ready: its window, its gap and a cell."""

MIN_BEFORE = 3
"""Losses that must have come before."""

GROSS_TIMES, GROSS_LOSS = 10.0, 10.0
"""Times the median of the losses before, and a loss in its own right. Source: the starts of 42
public tuning runs reach 5 times, at the fourth record of a 7B run."""


class GrossLoss(Detector):
    """One finding for each stretch of gross losses."""

    name = "gross-loss"
    listens_to = KnownChange.CHANGED

    def __init__(self) -> None:
        self._before: list[float] = []
        self._num_left = NUM_JUDGED
        """Losses that are still judged."""
        self._was_gross = False

    def on_event(self, change: KnownChange) -> None:
        """Judge again: the baseline of the loss starts anew."""
        self._num_left = NUM_JUDGED

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        loss = record.signals.get(LOSS, math.nan)
        if not self._num_left or not math.isfinite(loss):
            return []
        self._num_left -= 1
        usual = median(self._before) if len(self._before) >= MIN_BEFORE else math.inf
        limit = max(GROSS_TIMES * abs(usual), GROSS_LOSS)
        was_gross, self._was_gross = self._was_gross, loss > limit
        if not self._was_gross:
            self._before = [*self._before[1 - NUM_JUDGED :], loss]
            return []
        if was_gross:
            return []
        return [
            self.finding(
                record, Symptom.LOSS_SPIKE, Severity.ALARM, LOSS, expected=usual, limit=limit
            )
        ]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows of the first losses."""
        return np.flatnonzero(block.column(LOSS).finite)[: self._num_left]


# ResumeGap: whether the loss continues after a resume where it was before.
#
# A run that was saved and loaded correctly continues as if nothing had happened. Weights of a
# different checkpoint, different data or a lost optimizer state raise the first losses. Where norms
# are recorded they show it at once; where they are not, the loss is all there is.

LOSSES_BEFORE, LOSSES_AFTER = 32, 8
"""Losses on either side whose medians are compared."""

MIN_SCALES, MIN_SHARE = 3.0, 0.01
"""How far above the loss must be: in deviations of one loss, and as a share of it. Source: the
guide of a large public run escalates at 1 %; the correct resumes of the lab stay under 1
deviation."""


class ResumeGap(Detector):
    """One finding for a resume after which the loss is higher."""

    name = "resume-gap"
    listens_to = KnownChange.RESUMED | KnownChange.CHANGED | KnownChange.WENT_BACK

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._after: list[float] | None = None
        """The losses since the resume, while they are being gathered."""

    def on_event(self, change: KnownChange) -> None:
        """Judge a resume, unless the run has changed or starts at an earlier step."""
        if change is not KnownChange.RESUMED:
            self._recent, self._after = [], None
        elif self._after is None and len(self._recent) == LOSSES_BEFORE:
            self._after = []

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        loss = record.signals.get(LOSS, math.nan)
        if not math.isfinite(loss):
            return []
        if self._after is None:
            self._recent = [*self._recent[1 - LOSSES_BEFORE :], loss]
            return []
        self._after.append(loss)
        if len(self._after) < LOSSES_AFTER:
            return []
        level = median(self._recent)
        scale = sigma_around(level, self._recent)
        gap = median(self._after) - level
        self._recent, self._after = [*self._recent, *self._after][-LOSSES_BEFORE:], None
        if not gap > max(MIN_SCALES * scale, MIN_SHARE * abs(level)):
            return []
        facts = {"gap": gap, "deviation": scale}
        return [
            self.finding(
                record, Symptom.RESUME_GAP, Severity.ALARM, LOSS, expected=level, facts=facts
            )
        ]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows of the losses after a resume, and of the last ones, for the next."""
        rows = np.flatnonzero(block.column(LOSS).finite)
        num_wanted = 0 if self._after is None else LOSSES_AFTER - len(self._after)
        return np.concatenate((rows[:num_wanted], rows[num_wanted:][-LOSSES_BEFORE:]))


FIRST_LOSSES, LOSSES_PER_MEAN = 8, 32
"""Losses whose median is the start, and how many later ones are averaged."""

MIN_LOSSES, MIN_STEPS = 128, 2000
"""Losses and steps after which a loss must have fallen."""

MIN_FALL, HAS_FALLEN = 0.02, 0.05
"""Share of the start by which it must have fallen, and by which it has learned for good. Source: of
42 public tuning runs the slowest had fallen by 6 % after 64 records and 2,000 steps."""

FROM_SCRATCH_LOSS, MAX_FIRST_STEP = 4.0, 500
"""A run that starts at this loss or above, with its first record by this step, starts from scratch.
Chosen: 4 nats are a choice among 55; a fine-tuned model starts lower and may hardly fall."""


class FallFromStart(Stateful):
    """Judges the first losses of a run; it is over when they fell, or when they did not in time."""

    def __init__(self) -> None:
        self.is_over = False
        self._first: list[float] = []
        self._count = 0
        self._total, self._in_mean = 0.0, 0

    def stop(self) -> None:
        """Judge no further."""
        self.is_over = True
        self._first = []

    def update(self, loss: float, step: int) -> tuple[float, float] | None:
        """Judge the next loss; return the start and the mean now of a run that did not learn."""
        if self.is_over or not math.isfinite(loss):
            return None
        self._count += 1
        if self._count == 1 and step > MAX_FIRST_STEP:
            self.stop()
            return None
        if self._count <= FIRST_LOSSES:
            self._first.append(loss)
            return None
        self._total += loss
        self._in_mean += 1
        if self._in_mean < LOSSES_PER_MEAN:
            return None
        mean, start = self._total / LOSSES_PER_MEAN, median(self._first)
        self._total, self._in_mean = 0.0, 0
        if start < FROM_SCRATCH_LOSS or mean < (1 - HAS_FALLEN) * start:
            self.stop()
        elif self._count >= MIN_LOSSES and step >= MIN_STEPS and mean > (1 - MIN_FALL) * start:
            self.stop()
            return start, mean
        return None


# NoLearning: a loss that is no better than the frequency of the tokens, or than at the start.
#
# `token_rarity` is the loss of a model that knows how often each token occurs, and nothing of the
# context. A model that stays there does not use its context: attention has collapsed, the learning
# rate is far too high, or signals do not get through its layers. Where it was not recorded, a run
# from scratch must at least fall under the loss that it started with.

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
