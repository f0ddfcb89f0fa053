"""Losses that are judged without a baseline: at the start of a run, and at a resume.

GrossLoss   a loss beyond all measure before the baseline is known, or of the whole run
ResumeGap   a loss that is higher after a resume than before
NoLearning  a loss no better than the frequency of tokens, or than at the start of the run
"""

import math
from collections.abc import Iterator

import numpy as np

from trimtab.core.block import Block, BoolArray, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import grain, is_one_grain, median, sigma_around
from trimtab.core.signals import GRAD_NORM, LOSS, POLICY_SIGNALS, TOKEN_RARITY
from trimtab.core.state import Stateful, StatefulDict
from trimtab.detect.loss.meaning import LossMeaning
from trimtab.detect.tools.baseline import MIN_WINDOW, RECORDS_PER_CELL

# GrossLoss: losses or norms far beyond the start of the run, while no baseline is known yet.
#
# Before a baseline has its first 24 losses, and again after a planned change, a loss can only be
# compared with the few before it. A start falls or stays where it is; one that multiplies, and
# stays there for three records, is lost.

NUM_JUDGED = MIN_WINDOW + 2 * RECORDS_PER_CELL
"""Losses until the baseline of the loss is ready: its window, its gap and a cell."""

MIN_BEFORE = 2
"""Losses that must have come before."""

GROSS_TIMES = {LOSS: 2.5, GRAD_NORM: 10.0}
GROSS_RECORDS, RISING_RECORDS = 3, 4
"""Times the largest value before the latest four (it may take some records to rise), and records in
a row. Source: no start of 42 public tuning runs, nor of the healthy kinds of `scripts/bench judge`,
does this; one batch that is many times larger is ordinary where losses have heavy tails."""

HUGE_TIMES, HUGE_RECORDS = 20.0, 2
"""The same for a loss that leaves no doubt: a log may end with it. Chosen."""

EVEN_RECORDS, EVEN_WIDTHS, EVEN_SHARE = 6, 8.0, 0.08
"""Values before, widths of their range and share by which a loss counts as gross too: a start that
is even to a percent and then rises by ten has changed. Chosen; no healthy kind of `scripts/bench
judge` does it."""

ABSURD_TIMES = 100.0
"""Times the highest loss of the whole run so far, its start included, from which one loss alone is
an incident, however often the run logs. Chosen: of the public tuning runs, strangers and healthy
kinds of `scripts/bench judge` whose loss measures progress none is healthy and over 6."""

GROSS_SYMPTOMS = {LOSS: Symptom.LOSS_SPIKE, GRAD_NORM: Symptom.GRADIENT_SPIKE}


class GrossLoss(Detector):
    """One finding for each stretch of gross losses or gradient norms."""

    name = "gross-loss"
    listens_to = KnownChange.CHANGED

    def __init__(self, objective: str = "auto") -> None:
        self._meaning = LossMeaning(objective)
        self._starts = StatefulDict(_Start)
        self._step = 0
        """Of the last record with a norm."""
        self._highest, self._num_losses = 0.0, 0
        """The highest finite loss so far, and how many there were; since a planned change."""

    def on_event(self, change: KnownChange) -> None:
        """Judge again: the baseline of the loss starts anew."""
        for start in self._starts.values():
            start.num_left = NUM_JUDGED
        self._highest, self._num_losses = 0.0, 0

    def update_many(self, block: Block) -> list[Finding]:
        self._meaning.observe(block)
        rows = [
            np.flatnonzero(block.column(signal).finite)[: self._starts[signal].num_left]
            for signal in GROSS_TIMES
        ]
        records = block.records(np.union1d(*rows))
        found = [finding for record in records for finding in self._judge(record)]
        return sorted([*found, *self._judge_absurd(block)], key=lambda finding: finding.tick)

    def _judge_absurd(self, block: Block) -> Iterator[Finding]:
        """Yield a finding for each loss that is absurd against all losses before it."""
        loss = block.column(LOSS)
        rows = np.flatnonzero(loss.finite)
        values = loss.values[rows]
        highest = np.maximum.accumulate(np.concatenate(([self._highest], values)))
        known = self._num_losses + np.arange(len(rows)) >= NUM_JUDGED
        absurd = known & (highest[:-1] > 0) & (values > ABSURD_TIMES * highest[:-1])
        self._highest, self._num_losses = float(highest[-1]), self._num_losses + len(rows)
        for at in np.flatnonzero(absurd).tolist():
            (record,) = block.records(rows[at : at + 1])
            if not self._meaning.is_surrogate(record.tick):
                yield self.finding(
                    record,
                    Symptom.LOSS_SPIKE,
                    Severity.ALARM,
                    LOSS,
                    expected=float(highest[at]),
                    limit=ABSURD_TIMES * float(highest[at]),
                    onset_tick=record.tick,
                )

    def _judge(self, record: Record) -> list[Finding]:
        findings = []
        for signal in GROSS_TIMES:
            start = self._starts[signal]
            value = record.signals.get(signal, math.nan)
            if not start.num_left or not math.isfinite(value):
                continue
            if signal == GRAD_NORM:
                last, self._step = self._step, record.step
                if record.step > last + 1:
                    start.num_left -= 1
                    continue  # between two records of a thinned log a warm-up may raise it
            found = start.update(value, record.tick)
            if found is not None:
                usual, limit = found
                is_measure = signal != LOSS or not self._meaning.is_surrogate(record.tick)
                findings.append(
                    self.finding(
                        record,
                        GROSS_SYMPTOMS[signal],
                        Severity.ALARM if is_measure else Severity.WARN,
                        signal,
                        expected=usual,
                        limit=limit,
                        onset_tick=start.onset_tick,
                    )
                )
        return findings


class _Start(Stateful):
    """The first values of one signal."""

    not_saved = ("_times", "_may_be_even")

    def __init__(self, signal: str) -> None:
        self._times = GROSS_TIMES[signal]
        self._may_be_even = signal == LOSS
        """Whether an even start says anything: in a warm-up the norms of gradients grow."""
        self.num_left = NUM_JUDGED
        """Values that are still judged."""
        self._before: list[float] = []
        self._gross: list[float] = []
        """The present stretch."""
        self.onset_tick = 0
        """Of the newest stretch."""
        self._is_reported = False

    def update(self, value: float, tick: int) -> tuple[float, float] | None:
        """Add a value; return what was usual and the limit if it completes a gross stretch."""
        self.num_left -= 1
        usual, limit = self._limit()
        if value > limit > 0:
            if not self._gross:
                self.onset_tick = tick
            self._gross.append(value)
            is_huge = self._may_be_even and min(self._gross) > HUGE_TIMES * usual
            needed = HUGE_RECORDS if is_huge else GROSS_RECORDS
            is_due = len(self._gross) >= needed and not self._is_reported
            self._is_reported |= is_due
            return (usual, limit) if is_due else None
        # The stretch is over: it was a part of the start.
        self._before, self._gross = [*self._before, *self._gross, value][-NUM_JUDGED:], []
        self._is_reported = False
        return None

    def _limit(self) -> tuple[float, float]:
        """Return what was usual, and what a gross value exceeds."""
        before = self._before
        if len(before) < MIN_BEFORE:
            return math.inf, math.inf
        usual = max(before[: max(len(before) - RISING_RECORDS, 3)])
        limit = self._times * usual
        if self._may_be_even and len(before) >= EVEN_RECORDS:
            low, high = min(before), max(before)
            limit = min(limit, high + max(EVEN_WIDTHS * (high - low), EVEN_SHARE * abs(high)))
        return usual, limit


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


LOSSES_PER_MEDIAN, MIN_STEPS, MIN_LOSSES = 8, 1500, 64
"""Losses whose median is compared with that of the first ones, and steps after which it must have
fallen. Medians: the first record of a run is often high by chance. With fewer losses than the last
figure it must not have fallen at all."""

MIN_FALL, HAS_FALLEN = 0.02, 0.05
"""Share of the start by which it must have fallen, and by which it has learned for good. Source: of
42 public tuning runs the slowest had fallen by 6 % after 64 records and 2,000 steps."""

FROM_SCRATCH_LOSS, MAX_FIRST_STEP = 4.0, 500
"""A run that starts at this loss or above, with its first record by this step, starts from scratch.
Chosen: 4 nats are a choice among 55; a fine-tuned model starts lower and may hardly fall."""

CHANCE_SHARE, CLASSES = 0.01, (2, 10)
"""A lower start is from scratch if it is within this share of ln(n), the loss of a classifier of n
classes that knows nothing. Only of the most common n: near ln of some n is every loss over 2."""


class FallFromStart(Stateful):
    """Judges the first losses of a run; it is over when they fell, or when they did not in time."""

    def __init__(self) -> None:
        self.is_over = False
        self._start: float | None = None
        self._count = 0
        self._latest: list[float] = []

    @property
    def _limit(self) -> float:
        """The share of the start under which a loss has fallen; few records show less."""
        return 1 - MIN_FALL if self._count >= MIN_LOSSES else 1.0

    def stop(self) -> None:
        self.is_over = True
        self._latest = []

    def update(self, loss: float, step: int) -> tuple[float, float] | None:
        """Judge the next loss; return start and present median of a run that did not learn."""
        if self.is_over or not math.isfinite(loss):
            return None
        if self._start is None and not self._latest and step > MAX_FIRST_STEP:
            self.stop()
            return None
        self._latest.append(loss)
        if len(self._latest) < LOSSES_PER_MEDIAN:
            return None
        self._count += LOSSES_PER_MEDIAN
        now, self._latest = median(self._latest), []
        if self._start is None:
            self._start = now
            if not _is_from_scratch(now):
                self.stop()
            return None
        if now < (1 - HAS_FALLEN) * self._start:
            self.stop()
        elif step >= MIN_STEPS and now >= self._limit * self._start:
            start = self._start
            self.stop()
            return start, now
        return None


def _is_from_scratch(start: float) -> bool:
    """Return whether a loss is that of a model that knows nothing."""
    return start >= FROM_SCRATCH_LOSS or any(
        abs(start - math.log(classes)) <= CHANCE_SHARE * start for classes in CLASSES
    )


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


SAME_AT_START, SAME_IF_ROUNDED, SAME_LATER = 8, 64, 32
"""Losses in a row, from the first of the run or later, that are equal to the last digit: the model
does not move, or its output does not depend on its weights. Chosen: the first eight losses of a run
that learns differ even with four digits; in bf16 they are equal for dozens of steps of a warm-up.
Later a loss with few digits repeats on any plateau, so its last move must have been a real one."""

FEW_GRAINS = 2048
"""A loss of at most so many grains is rounded: bf16 has 8 bits, fp16 11, a short log 3 digits."""

TOO_FEW_GRAINS = 32
"""A later loss of at most so many grains, by its own or by the one before it, may be printed alike
for ever while it moves by a few percent. Chosen."""

LOSS_GONE = 0.25
"""The share of the first loss from which no loss falls to exactly 0 at once, to stay there."""


class NoLearning(Detector):
    """One finding for a run, or for a stretch in which it has lost what it had learned."""

    name = "no-learning"

    def __init__(self) -> None:
        self._count = 0
        self._in_mean, self._total = 0, 0.0
        self._is_reported = False
        self._fall = FallFromStart()
        self._last, self._num_same, self._same_limit = math.nan, 0, 0
        """The last loss, how often it came in a row, and how often it must; 0: it may for ever."""
        self._first = math.nan
        self._norm: float | None = None
        """The gradient norm beside the last loss."""
        self._was_zero = self._is_gone = False
        """Whether a loss was 0, and whether it fell to 0 at once."""
        self._first_tick, self._same_since = -1, 0
        """Ticks of the first loss, and of the first of those that are the same."""

    def update(self, record: Record) -> list[Finding]:
        loss, rarity = record.signals.get(LOSS), record.signals.get(TOKEN_RARITY)
        if loss is None:
            return []
        self._first_tick = record.tick if self._first_tick < 0 else self._first_tick
        if self._is_stuck(loss, record):
            return [self._finding(record, loss, 0.0, self._same_since)]
        if loss < 0 or not POLICY_SIGNALS.isdisjoint(record.signals):
            self._fall.stop()  # a surrogate need not fall
        if rarity is None:
            stayed = self._fall.update(loss, record.step)
            if stayed is None:
                return []
            return [self._finding(record, stayed[0], stayed[0] - stayed[1], self._first_tick)]
        self._fall.stop()
        mean = self._mean_gain(rarity - loss)
        if mean is None:
            return []
        was_reported, self._is_reported = self._is_reported, mean < NO_BETTER
        if was_reported or not self._is_reported:
            return []
        return [self._finding(record, rarity, mean)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a loss; once the run has learned, only those that matter."""
        column = block.column(LOSS)
        loss, rarity = column.present, block.column(TOKEN_RARITY).present
        rows = np.flatnonzero(loss)
        if not self._fall.is_over or not len(rows):
            return rows
        # Equal losses, and those around them: each is compared with the one before.
        values = column.values[rows]
        same = np.concatenate(([True], np.diff(values) == 0, [True, True]))
        matters: BoolArray = same[:-2] | same[1:-1] | same[2:] | rarity[rows] | (values == 0)
        matters[1:] |= same[:-3]
        return np.asarray(rows[matters])

    def _is_stuck(self, loss: float, record: Record) -> bool:
        """Return whether the loss has just been the same for long enough."""
        norm = record.signals.get(GRAD_NORM)
        if loss != self._last:
            self._same_limit = self._limit_of(loss, norm)
            self._first = loss if math.isnan(self._first) else self._first
            self._last, self._num_same, self._norm = loss, 0, norm
            self._same_since = record.tick
        if loss == 0:
            self._was_zero = True
            if not POLICY_SIGNALS.isdisjoint(record.signals):
                self._same_limit = 0
            elif norm and norm == self._norm and self._num_same:
                self._same_limit = SAME_AT_START  # no target counts, as DeepSpeed prints it
            elif norm != self._norm and not self._is_gone:
                self._same_limit, self._norm = 0, norm  # gradients move: a policy's
        self._num_same += 1
        return self._num_same == self._same_limit

    def _limit_of(self, loss: float, norm: float | None) -> int:
        """Return how often a loss must come in a row after the one before; 0 if it may for ever."""
        if not math.isfinite(loss):
            return 0
        is_first = math.isnan(self._first)
        if loss == 0:  # usual for a hinge that has learnt, and for a policy with its gradients
            self._is_gone = not self._was_zero and self._last > LOSS_GONE * self._first
            return SAME_AT_START if self._is_gone or (is_first and not norm) else 0
        if is_first:
            is_rounded = abs(loss) <= FEW_GRAINS * grain(loss)
            return SAME_IF_ROUNDED if is_rounded else SAME_AT_START
        if not math.isfinite(self._last):
            return SAME_LATER
        finest = min(grain(self._last), grain(loss))
        is_rounded = is_one_grain(self._last, loss) or abs(loss) <= TOO_FEW_GRAINS * finest
        return 0 if is_rounded else SAME_LATER

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

    def _finding(
        self, record: Record, expected: float, better_by: float, onset_tick: int | None = None
    ) -> Finding:
        return self.finding(
            record,
            Symptom.NO_LEARNING,
            Severity.ALARM,
            LOSS,
            expected=expected,
            onset_tick=onset_tick,
            facts={"better_by": better_by},
        )
