"""LevelShift: the mean of the last records against the mean of those before, for shifts and drifts.

    [ ------- three times as long ------- ][ 24, 48, 96 or 192 records ]
                reference                            now

The noise of a loss has a long memory (waves of the data, shard after shard), so the scatter of
single records does not show how far two such means differ by chance. The run itself shows it: the
measure is the same difference over its last 1,024 records, less its slow trend. A falling loss
makes the difference negative, but less and less so: after its first thousand steps a loss falls
about like 1 / records (measured), so a difference that was usual once is assumed to shrink with the
square of that. A rise is measured from the fall that is usual now, but only if it is a rise at all.

A rise is a warning. It becomes an alarm if it is one of 0.8 %, the harder stretches rose too, and
the level is still there 96 records later and not falling: the order of the data makes bumps of
dozens of records, and the tail of a recovery is no news (LastingRise). After a rise of 0.8 %
the test starts again with the records that showed it: a level that moved is reported once.

Turn: a smooth curve that turns upwards.

    9.2 \\
          \\ _                          three rises in a row, each larger than
              - _        /   / /       any change of the 24 records before
                  - _ _ /

A loss that falls steadily and then rises is still under its level of dozens of records ago, so
neither its baseline nor its level shows that it has turned. Its changes do. The test uses only
their order, so it holds in noise of any size: the changes of noise alternate, and three in a row
beyond the range of 24 are rare. It is for curves with little noise: thinned, averaged, read off a
plot.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from trimtab.core.block import FloatArray, IntArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import TINY, mean_and_deviation, medians, sigmas_around
from trimtab.core.signals import LOSS
from trimtab.core.state import Stateful
from trimtab.detect.loss.cells import REFERENCE, SPANS, Cell, CellArrays, Rise, SpanSums
from trimtab.detect.loss.meaning import ComparisonScale, LossStart
from trimtab.detect.tools.baseline import RECORDS_PER_CELL
from trimtab.detect.tools.range_test import RangeSpec, RangeTest
from trimtab.detect.tools.score_history import NO_SCORE, Bounds, ScoreHistory
from trimtab.detect.tools.series import Point, Series, windows_over

# LastingRise: waits until a rise of the level has lasted, and raises the alarm.
#
# The order of the data makes bumps of dozens of records that look like a level that rose, and so
# does the tail of a recovery. They pass; a model that got worse stays worse.

NUM_CELLS, MAX_CELLS = 12, 36
"""Cells of 8 records after which a rise has lasted. One that falls is judged again after as
many, and given up after the second. Source: without the wait, this rule raised most of the false
alarms on unseen LLM runs, where runs over the same data show the same bump."""

LASTING_SHARE, FALLING_SHARE = 0.5, 0.4
"""This share of the rise must still be there. A level that falls by the second share of its height,
from the first half of these cells to the second half, is coming back. Chosen."""


class LastingRise(Stateful):
    """At most one rise that waits."""

    not_saved = ("_domain",)

    def __init__(self, domain: ComparisonScale) -> None:
        self._domain = domain
        self._level: float | None = None
        """The level before the rise; None if nothing waits."""
        self._rise = 0.0
        self._onset_tick: int | None = None
        self._facts: dict[str, float] = {}
        """Of the warning."""
        self._means: list[float] = []
        """The cells since then."""

    @property
    def is_waiting(self) -> bool:
        return self._level is not None

    def wait_for(self, warning: Finding, rise: Rise) -> None:
        """Wait for the rise of a warning, unless an earlier one waits already."""
        if self._level is None:
            self._level, self._rise = rise.reference, rise.height
            self._onset_tick, self._facts, self._means = (
                warning.onset_tick,
                dict(warning.facts),
                [],
            )

    def stop(self) -> None:
        self._level, self._onset_tick, self._facts, self._means = None, None, {}, []

    def update(self, cell: Cell) -> Finding | None:
        """Add the next cell; return the alarm if the rise has lasted."""
        level, rise = self._level, self._rise
        if level is None:
            return None
        self._means.append(cell.mean)
        if len(self._means) % NUM_CELLS:
            return None
        half = NUM_CELLS // 2
        first, second = sum(self._means[-NUM_CELLS:-half]), sum(self._means[-half:])
        height = (first + second) / NUM_CELLS - level
        is_high = height > LASTING_SHARE * rise
        if is_high and first - second > half * FALLING_SHARE * height:
            if len(self._means) >= MAX_CELLS:
                self.stop()
            return None
        finding = self._alarm(cell, level, height) if is_high else None
        self.stop()
        return finding

    def _alarm(self, cell: Cell, level: float, height: float) -> Finding:
        return Finding(
            detector="level-shift",
            symptom=Symptom.LEVEL_SHIFT,
            severity=Severity.ALARM,
            signal=LOSS,
            step=cell.step,
            tick=cell.tick,
            value=self._domain.back(cell.loss),
            expected=self._domain.back(level),
            onset_tick=self._onset_tick,
            facts={
                **self._facts,
                "rise": self._domain.back(level + height) - self._domain.back(level),
            },
        )


RISES_REMEMBERED, MIN_RISES = 128, 48
"""Cells over which the usual difference is measured, and how many are needed for it."""

BOUNDS = Bounds(prior=5.25, low=5.25, cap=8.25, rank=3, factor=1.4)
"""Scores beyond which a difference is not chance. Source: measured over the 170,000 healthy points
of the tuning runs: no false alarm, with 5 one and with 4.75 three; a factor of 1.2 is equal, 1.75
loses a tenth of the shifts in noisy runs."""

WARN_SHARES = (0.006, 0.006, 0.006, 0.015)
"""The rise itself, from zero, as a share of the loss, by span: a loss that merely stops falling is
not reported. The longest span sees slow waves of 1 % in healthy runs (measured), so its limit is
higher."""

ALARM_SHARE = 0.008
"""The same for an alarm. Source: measured; 2 % is no quieter and finds drifts a hundred steps
later; in healthy runs with little noise the level moves by less than this."""

HARD_SHARE = 0.65
"""The share of a rise that must also show among the hardest quarter of the cells. A model that got
worse got worse everywhere; where the easy stretches of the data end, the hard ones stay as they
were. Source: measured: 0.6 to 0.8 remove all three false alarms of one such place, under 0.6 two of
them stay, and drifts are found as well as without."""

BURN_IN_CELLS, BURN_IN = 192, 2.0
"""Added to the threshold in the first cells of a run, as for spikes: 1,536 records, because slow
waves show late. Chosen on the tuning half of `scripts/bench judge`."""

YOUNG_SPANS, YOUNG_SCORE, YOUNG_SHARE = 2, 4.5, 0.08
"""Spans, the shortest first, that are judged by the scatter of their cells in a young run, the
score, and the share of the loss by which it must have risen: a fine-tuning is over by then, and the
order of its data moves its level by less. Chosen; no healthy public tuning run rises so for 96
records."""

FLOOR = 0.0005
"""The smallest scale, as a share of the loss."""

CELLS_AT_ONCE, CELLS_ONE_BY_ONE = 512, 4
"""Cells that are judged at once, and those judged one by one from a cell that may alarm."""

_LONGEST = (1 + REFERENCE) * SPANS[-1]
_CELLS_PER_LOOK = 8
"""Cells between two measurements of the usual difference."""


class LevelShift(Stateful):
    """Alarms where the level of the loss has moved up, suddenly or slowly."""

    name = "level-shift"
    not_saved = ("_bounds", "_domain", "_start")

    def __init__(
        self, domain: ComparisonScale, start: LossStart, threshold_scale: float = 1.0
    ) -> None:
        self._domain = domain
        self._start = start
        self._bounds = BOUNDS.times(threshold_scale)
        self._cells: deque[tuple[float, int]] = deque(maxlen=_LONGEST)
        """Mean and first tick of the newest cells."""
        self._sums = SpanSums()
        self._rises = [deque[tuple[int, float]](maxlen=RISES_REMEMBERED + span) for span in SPANS]
        """For each span, after how many cells a rise was measured, and its height."""
        self._usual: list[tuple[float, float] | None] = [None] * len(SPANS)
        """Centre and spread of the rises of each span, as of the last measurement."""
        self._history = ScoreHistory(len(SPANS))
        self._best = math.inf
        """The lowest reference so far, over the shortest span."""
        self._num_cells = 0
        self._has_warned = False
        """Whether the rise that is going on was reported as a warning."""
        self._lasting = LastingRise(domain)

    def update(self, cell: Cell) -> Finding | None:
        confirmed = self._lasting.update(cell)
        finding = self._compare(cell)
        return confirmed or finding

    def update_many(self, cells: CellArrays) -> list[Finding]:
        """Judge many cells, as `update` would one by one."""
        findings = []
        at, careful = 0, 0
        while at < len(cells):
            if not careful:
                passed = self._pass_quietly(cells, at)
                at, careful = at + passed, 0 if passed == CELLS_AT_ONCE else CELLS_ONE_BY_ONE
                continue
            finding = self.update(cells.one(at))
            if finding is not None:
                findings.append(finding)
            at, careful = at + 1, careful - 1
        return findings

    def restart(self) -> None:
        """Do not compare across this place: the level is known to move here."""
        self._sums = SpanSums()
        self._lasting.stop()

    def _compare(self, cell: Cell) -> Finding | None:
        if self._num_cells % _CELLS_PER_LOOK == 0:
            now = self._num_cells
            self._usual = [_usual(*pair, now) for pair in zip(self._rises, SPANS, strict=True)]
        self._num_cells += 1
        self._cells.append((cell.mean, cell.first_tick))
        scores = [NO_SCORE] * len(SPANS)
        finding = None
        for at, rise in enumerate(self._sums.add(cell.mean)):
            if rise is None:
                continue
            self._rises[at].append((self._num_cells, rise.height))
            if at == 0:
                self._best = min(self._best, rise.reference)
            usual = self._usual[at]
            if usual is not None:
                scores[at] = (rise.height - usual[0]) / self._scale(usual[1], rise.reference)
            if finding is None and scores[at] > self._bounds.prior:
                finding = self._judge(at, scores[at], rise, cell)
            elif finding is None and self._is_young and not self._lasting.is_waiting:
                finding = self._judge_young(at, rise, cell)
            else:
                continue
            if finding is not None:
                self._after_finding(finding, rise)
        if max(scores) <= self._bounds.prior:
            self._has_warned = False
            self._history.update(np.array(scores)[:, None])
        return finding

    @property
    def _is_young(self) -> bool:
        """Whether the usual difference is not known, or still that of the steep first records."""
        return self._num_cells <= BURN_IN_CELLS

    def _scale(self, spread: float, reference: float) -> float:
        floor = FLOOR if self._domain.is_log else FLOOR * abs(reference)
        return max(spread, floor, TINY)

    def _judge_young(self, at: int, rise: Rise, cell: Cell) -> Finding | None:
        """Return the warning for a large rise in a young run, by the scatter of its cells."""
        span = SPANS[at]
        share = self._domain.share(rise.height, rise.reference)
        if at >= YOUNG_SPANS or share <= YOUNG_SHARE:
            return None
        before = [mean for mean, _ in self._cells][-(1 + REFERENCE) * span : -span]
        # Not by medians, which of nine cells are off by a third; single cells are clipped already.
        _, spread = mean_and_deviation(before)
        score = rise.height / self._scale(spread * math.sqrt(1 / span + 1 / len(before)), 0.0)
        if score <= YOUNG_SCORE:
            return None
        return self._finding(at, score, YOUNG_SCORE, rise, cell)

    def _judge(self, at: int, score: float, rise: Rise, cell: Cell) -> Finding | None:
        """Return the warning for a rise over one span; None if it is too small."""
        burn_in = BURN_IN if self._is_young else 0.0
        threshold = self._history.threshold(at, self._bounds) + burn_in
        share = self._domain.share(rise.height, rise.reference)
        may_last = share > ALARM_SHARE
        if score <= threshold or share <= WARN_SHARES[at] or (self._has_warned and not may_last):
            return None
        return self._finding(at, score, threshold, rise, cell)

    def _finding(
        self, at: int, score: float, threshold: float, rise: Rise, cell: Cell
    ) -> Finding | None:
        """Return the warning, unless the hard cells did not rise."""
        if self._rise_of_hard_cells(SPANS[at]) <= HARD_SHARE * rise.height:
            return None
        return Finding(
            detector=self.name,
            symptom=Symptom.LEVEL_SHIFT,
            severity=Severity.WARN,
            signal=LOSS,
            step=cell.step,
            tick=cell.tick,
            value=self._domain.back(cell.loss),
            expected=self._domain.back(rise.reference),
            onset_tick=self._cells[-SPANS[at]][1],
            facts={
                "score": score,
                "threshold": threshold,
                "records": float(RECORDS_PER_CELL * SPANS[at]),
                "rise": self._domain.back(rise.reference + rise.height)
                - self._domain.back(rise.reference),
            },
        )

    def _rise_of_hard_cells(self, span: int) -> float:
        """Return how far the upper quartile of the newest cells is above the reference's."""
        means = [mean for mean, _ in self._cells]
        now, before = sorted(means[-span:]), sorted(means[-(1 + REFERENCE) * span : -span])
        return now[3 * len(now) // 4] - before[3 * len(before) // 4]

    def _after_finding(self, finding: Finding, rise: Rise) -> None:
        """Report a rise once; after one that may last, compare with the level it reached."""
        self._history.drop_current()
        may_last = self._domain.share(rise.height, rise.reference) > ALARM_SHARE
        self._has_warned = not may_last
        is_news = self._start.is_news(
            best=self._best, before=rise.reference, now=rise.reference + rise.height, is_slow=True
        )
        if may_last and is_news:
            span = int(finding.facts["records"]) // RECORDS_PER_CELL
            self._sums = SpanSums(mean for mean, _ in list(self._cells)[-span:])
            self._lasting.wait_for(finding, rise)

    def _pass_quietly(self, cells: CellArrays, first: int) -> int:
        """Pass the cells before the first that may alarm; return how many."""
        is_full = all(len(rises) == rises.maxlen for rises in self._rises)
        if self._lasting.is_waiting or not is_full or not self._sums.is_full or None in self._usual:
            return 0
        means = cells.mean[first : first + CELLS_AT_ONCE]
        sums = self._sums.copy()
        heights, references = sums.add_many(means)
        looks = np.flatnonzero((self._num_cells + np.arange(len(means))) % _CELLS_PER_LOOK == 0)
        centres, spreads = self._usual_at(heights, looks)
        latest_look = np.searchsorted(looks, np.arange(len(means)), side="right")
        floor = FLOOR if self._domain.is_log else FLOOR * np.abs(references)
        scale = np.maximum(np.maximum(spreads[:, latest_look], floor), TINY)
        scores = (heights - centres[:, latest_look]) / scale
        suspicious = (scores > self._bounds.prior).any(axis=0)
        quiet = int(np.argmax(suspicious)) if suspicious.any() else len(means)
        if quiet:
            if quiet == len(means):
                self._sums = sums
            else:
                self._sums.add_many(means[:quiet])
            self._history.update(scores[:, :quiet])
            self._best = min(self._best, float(references[0, :quiet].min()))
            first_kept = max(quiet - RISES_REMEMBERED - SPANS[-1], 0)
            numbers = range(self._num_cells + 1 + first_kept, self._num_cells + 1 + quiet)
            newest = heights[:, first_kept:quiet].tolist()
            for rises, height in zip(self._rises, newest, strict=True):
                rises.extend(zip(numbers, height, strict=True))
            last = latest_look[quiet - 1]
            pairs = zip(centres[:, last].tolist(), spreads[:, last].tolist(), strict=True)
            self._usual = list(pairs)
            self._num_cells += quiet
            self._has_warned = False
            latest = slice(max(first + quiet - _LONGEST, first), first + quiet)
            ticks = cells.first_tick[latest].tolist()
            self._cells.extend(zip(cells.mean[latest].tolist(), ticks, strict=True))
        return quiet

    def _usual_at(self, heights: FloatArray, looks: IntArray) -> tuple[FloatArray, FloatArray]:
        """Centre and spread of each span: as known now, then at each measurement."""
        centres, spreads = [], []
        first = -self._num_cells % _CELLS_PER_LOOK
        now = (self._num_cells + looks)[:, None]
        coming = self._num_cells + 1 + np.arange(heights.shape[1])
        for rises, height, usual in zip(self._rises, heights, self._usual, strict=True):
            known = np.array(rises)
            ages = np.concatenate((known[:, 0], coming))
            all_heights = np.concatenate((known[:, 1], height))
            windows, ages_then = (
                windows_over(part[first:], RISES_REMEMBERED, _CELLS_PER_LOOK)[: len(looks)]
                for part in (all_heights, ages)
            )
            fall, spread = _fall_and_spread(windows, ages_then / now)
            centre, width = usual or (0.0, 0.0)
            centres.append(np.concatenate(([centre], fall)))
            spreads.append(np.concatenate(([width], spread)))
        return np.stack(centres), np.stack(spreads)


def _usual(rises: Sequence[tuple[int, float]], span: int, now: int) -> tuple[float, float] | None:
    """Centre and spread of the rises that ended before the newest span; None if too few."""
    past = list(rises)[: len(rises) - span]
    if len(past) < MIN_RISES:
        return None
    at, heights = np.array(past).T
    fall, spread = _fall_and_spread(heights[None], at[None] / now)
    return float(fall[0]), float(spread[0])


def _fall_and_spread(rises: FloatArray, ages: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the usual fall of each row of rises, and their spread around a slow trend."""
    count = rises.shape[1]
    fall = np.minimum(medians(ages * ages * rises), 0.0)
    third = count // 3
    slope = (medians(rises[:, -third:]) - medians(rises[:, :third])) / (count - third)
    rest = rises - slope[:, None] * np.arange(count)
    return fall, sigmas_around(medians(rest), rest)


RANGE = RangeSpec(before=24, newest=3, downwards=False)
"""Chosen on the tuning halves of `scripts/bench judge` and of the public runs."""

MIN_STRIDE = 2
"""Steps from record to record: where every step is logged the order of the data makes such turns,
and the sums of `loss-spike` find those that last."""

MIN_RISE = 0.02
"""The rise over the three records, as a share of the loss. Chosen."""


class TrendReversal(Stateful):
    """Alarms where the changes of a loss leave their range upwards."""

    name = "turn"
    not_saved = ("_domain",)

    def __init__(self, domain: ComparisonScale) -> None:
        self._domain = domain
        self._range = RangeTest(RANGE)
        self._latest: list[float] = []
        self._steps: list[int] = []
        """The values that the newest changes are between, and their steps."""

    def restart(self) -> None:
        self._range.restart()
        self._latest, self._steps = [], []

    def update_many(self, series: Series) -> list[Finding]:
        """Judge the next finite losses on the scale of their domain."""
        if not len(series):
            return []
        known = np.concatenate((self._latest, series.value))
        steps = [*self._steps, *series.step.tolist()]
        before = len(self._latest)
        changes = np.diff(known[max(before - 1, 0) :])
        findings = []
        for at, _ in self._range.update_many(changes):
            place = at + (1 if before == 0 else 0)
            last = before + place
            latest = known[last - RANGE.newest : last + 1].tolist()
            took = steps[last] - steps[last - RANGE.newest]
            finding = self._finding(series.one(place), latest, took)
            if finding is not None:
                findings.append(finding)
        self._latest = known[-RANGE.newest - 1 :].tolist()
        self._steps = steps[-RANGE.newest - 1 :]
        return findings

    def _finding(self, point: Point, latest: list[float], steps: int) -> Finding | None:
        """Return the alarm if the loss rose at each of the newest records, and by enough.

        Args:
            point: The newest record.
            latest: The values that the newest changes are between.
            steps: From the first of these to the last.
        """
        if steps < MIN_STRIDE * RANGE.newest:
            return None
        first = latest[0]
        is_rising = all(after > before for before, after in pairwise(latest))
        rise = self._domain.share(point.value - first, first)
        if not is_rising or rise <= MIN_RISE:
            return None
        return point.finding(
            self.name,
            Symptom.LOSS_SPIKE,
            Severity.ALARM,
            LOSS,
            value=self._domain.back(point.value),
            expected=self._domain.back(first),
            facts={"records": float(RANGE.newest), "rise": rise},
        )
