"""LossSpike: a rise that the noise of this run does not explain.

Eleven tests judge every record. Six use the loss: the record alone (only where a log skips steps),
and sums over the last 2, 4, 8, 16 and 32, each value clipped at 5 scales so that no single one
decides. Three use loss and gradient norm together, through the smaller of their two scores: both
must rise. Two use the loss against its neighbours, in thinned logs only. Each test
has a prior (`limits_at`) and follows the scores of this run when it is quiet
(score_history.py). After an alarm the sums start again, so the next alarm is new evidence.

A log that is thinned out shows little more of a spike than a record or two, as it does of a hard
batch. There a score over the threshold is a warning if the run reaches it by itself, by the tail of
its own scores; it is an alarm beyond that.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from trimtab.core.block import BoolArray, FloatArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import MAX_DIGITS, grain
from trimtab.core.signals import LOSS
from trimtab.core.state import Stateful
from trimtab.detect.loss.meaning import ComparisonScale, LossStart
from trimtab.detect.tools.baseline import Score, Scores
from trimtab.detect.tools.score_history import Bounds, ScoreHistory
from trimtab.detect.tools.series import Point, RunningSums, Series

# The limits of the tests for a loss spike, by how often a run logs.

LENGTHS = (1, 2, 4, 8, 16, 32, 1, 2, 4, 1, 2)
"""Records that each test adds up."""
ROOTS = tuple(math.sqrt(length) for length in LENGTHS)
SUMS, JOINT_SUMS, NEAR_SUMS = 5, 2, 1
JOINT, NEAR = 6, 9
"""The first of the tests that use loss and norm together, and of those that use the neighbours."""

MIN_RISE = (0.02,) + (0.012,) * SUMS + (0.006,) * (1 + JOINT_SUMS) + (0.02, 0.012)
"""Rise of the loss, as a share of it, under which nothing is a spike, by clipped scores. Source: 0
to 1.2 % are equal on public runs; less is not worth an alarm."""

CALM_RISE = 0.02
"""The same by scores that are not clipped: in a loss that is even to 0.2 % clipping would hide a
spike of any height. Chosen: the order of the data moves such a loss by over 1 %."""


CALM_SCALE = 0.004
"""The scale of a loss, by its logarithm, up to which it is even: it needs no burn-in where a log
skips steps. Twice the floor: in no public tuning run, nor in a healthy run of `scripts/bench judge`
that was thinned out, it costs an alarm."""


THIN_STRIDE = 50.0
"""Steps between two records from which a single loss is evidence enough."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of each test's threshold."""

    bounds: tuple[Bounds, ...]
    burn_in_records: int = 256
    burn_in: float = 2.0
    """What is added to every threshold in the first records of a run: the start is curved, a
    warm-up rises, and the run's own tail is not known. Source: measured, 2 halves the false
    alarms."""

    @property
    def lows(self) -> tuple[float, ...]:
        """The score of each test under which nothing needs a closer look."""
        return tuple(bound.low for bound in self.bounds)

    def times(self, threshold_scale: float) -> "Limits":
        """Return the same limits with thresholds this many times higher."""
        bounds = tuple(bound.times(threshold_scale) for bound in self.bounds)
        return dataclasses.replace(self, bounds=bounds)


_NEVER = Bounds(prior=math.inf, low=math.inf, cap=math.inf, rank=1)
_NO_NEAR = _NEVER, _NEVER
_SUMS = Bounds(prior=6.0, low=6.0, cap=9.0, rank=3)


def _limits(
    *, single: Bounds, sums: Bounds, joint: float | None, near: tuple[Bounds, Bounds]
) -> Limits:
    joint_sums = Bounds(prior=5.5, low=5.5, cap=8.25, rank=sums.rank)
    joint_single = _NEVER
    if joint is not None:
        joint_single = Bounds(prior=joint, low=joint, cap=1.5 * joint, rank=sums.rank)
    return Limits((single, *[sums] * SUMS, joint_single, *[joint_sums] * JOINT_SUMS, *near))


def _with_levels(limits: Limits, tests: tuple[int, ...], max_level: float) -> Limits:
    """Return the same limits, with tests that must also exceed the return level of the run."""
    return Limits(
        tuple(
            dataclasses.replace(bound, max_level=max_level if test in tests else 0.0)
            for test, bound in enumerate(limits.bounds)
        )
    )


EVERY_STEP = dataclasses.replace(
    _limits(
        single=_NEVER, sums=Bounds(prior=6.5, low=6.5, cap=13.0, rank=2), joint=None, near=_NO_NEAR
    ),
    burn_in_records=512,
    burn_in=3.25,
)
"""A single high loss is a batch, and so is a single one with a high norm: only what lasts is
evidence. In healthy every-step pretraining the sums stay under 6; in classifiers, regressions and
policies they reach 10 (`scripts/bench judge`), so a run that shows such sums while it is quiet
raises its threshold up to 13; a cap of 9.75 and a burn-in of 256 records cost 14 incidents where
these cost 8, and find no more. Until it is known the threshold is the middle of that range."""

EVERY_FEW_STEPS = _with_levels(
    _limits(
        single=Bounds(prior=12.0, low=12.0, cap=36.0, rank=2), sums=_SUMS, joint=6.0, near=_NO_NEAR
    ),
    tests=(0,),
    max_level=36.0,
)
"""Every 2 to 49 steps: single high records are mostly batches (healthy every-step runs, thinned out
to every 10 and 30 steps, reach 25), but a spike may have no more than one."""

THINNED = _with_levels(
    _limits(
        single=Bounds(prior=7.0, low=5.0, cap=10.0, rank=3),
        sums=_SUMS,
        joint=5.25,
        near=(
            Bounds(prior=12.0, low=7.0, cap=60.0, rank=2, factor=0.33, power=2),
            Bounds(prior=12.0, low=6.5, cap=60.0, rank=2, factor=0.28, power=2),
        ),
    ),
    tests=(0, 1, NEAR),
    max_level=12.0,
)
"""In healthy thinned logs one loss stays under 4 scales (except for a bimodal loss), loss and norm
together under 3.2; in healthy every-step runs that were thinned out, 7.2: a joint limit of 3.5
found no more. A run of many spikes would raise its own thresholds: hence the third highest and a
low cap, which cost nothing; a cap of 8 raises the first false alarm. The tests against neighbours
find a spike within 40 records of another, which the window of 40 hides: of 50 planted pairs 48
instead of 26, with the same false alarms.

A run whose records scatter widely makes single high records by itself: they must also exceed its
return level, as far as that is under 12 scales (chosen; 10 to 15 are equal)."""


def limits_at(stride: float) -> Limits:
    if stride >= THIN_STRIDE:
        return THINNED
    return EVERY_STEP if stride < 2 else EVERY_FEW_STEPS


MIN_GRAINS = 1.5
"""Steps of the grid that losses are rounded to beyond which a rise counts: where most neighbours
are equal, their scale is 0. Chosen: one step up is what a level between two of them looks like."""

HIGHEST_NEAR = 8.0
"""Scores against neighbours are clipped at this: they alarm only where they are rare."""

WITH_NORM = 1.5
"""Where a norm is recorded, a single loss is left to the joint tests, and two in a row need a
threshold 1.5 times higher: hard batches raise the loss by 7 scales and the norm by a quarter
(measured), and the joint tests find nearly everything that is lost."""

LOWEST, HIGHEST = -3.0, 5.0
"""Scores are clipped to this range before they are added. Source: measured, without it three to
five times the false alarms; 4 to 6 are equal."""

NORM_SHARE = 0.9
"""The weight of a norm's score beside that of the loss: healthy norms have longer tails."""

NO_NORM = -1.0
"""The joint score where no norm was recorded: it counts against a spike."""

ONSET_SCORE = 1.5
"""The onset is where the excess over this score, summed up to the alarm, is largest."""

SLOW_RECORDS = 16
"""A sum over this many records or more shows a slow rise. Chosen."""

RECORDS_PER_WARNING = 32
"""Records after a warning in which there is no second one. Chosen."""

RECORDS_AT_ONCE, RECORDS_AFTER_ALARM = 1024, 32
"""Records that are judged at once, at most and right after an alarm, which wastes the work on those
after it."""

_LONGEST = max(LENGTHS)


class _Hit(NamedTuple):
    """A test beyond its threshold."""

    test: int
    score: float
    threshold: float
    severity: Severity


class LossSpike(Stateful):
    """Alarms where the loss, alone or with the gradient norm, rises beyond the noise of the run."""

    name = "loss-spike"
    not_saved = ("_domain", "_start", "_threshold_scale", "_limits", "_lows")

    def __init__(
        self, domain: ComparisonScale, start: LossStart, threshold_scale: float = 1.0
    ) -> None:
        self._domain = domain
        self._start = start
        self._threshold_scale = threshold_scale
        self._set_stride(1.0)
        self._sums = RunningSums(SUMS)
        self._joint_sums = RunningSums(JOINT_SUMS)
        self._near_sums = RunningSums(NEAR_SUMS)
        self._history = ScoreHistory(len(LENGTHS))
        self._recent: deque[tuple[int, int, float, float]] = deque(maxlen=_LONGEST)
        """Tick, step, score, not clipped, and value of the records since the last alarm."""
        self._best = math.inf
        """The lowest level that was expected so far."""
        self._num_records = 0
        self._warned = -RECORDS_PER_WARNING
        """The number of the record of the last warning."""

    def update_many(
        self, series: Series, loss: Scores, near: Scores, norm_z: FloatArray
    ) -> list[Finding]:
        """Judge the next finite losses by their scores; `norm_z` is NaN where no norm was."""
        findings = []
        at, count = 0, RECORDS_AT_ONCE
        while at < len(series):
            part = slice(at, at + count)
            done, found = self._judge_part(series[part], loss[part], near[part], norm_z[part])
            findings += found
            has_alarmed = bool(found) and found[-1].severity is Severity.ALARM
            count = RECORDS_AFTER_ALARM if has_alarmed else min(2 * count, RECORDS_AT_ONCE)
            at += done
        return findings

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._set_stride(self._stride)

    def _set_stride(self, stride: float) -> None:
        self._stride = stride
        self._limits = limits_at(stride).times(self._threshold_scale)
        self._lows = self._limits.lows

    def _change_stride(self, stride: float) -> None:
        """Start again: scores at a new logging interval are not comparable."""
        self._set_stride(stride)
        self._history.clear()
        self._clear_sums()

    def _judge_part(
        self, series: Series, loss: Scores, near: Scores, norm_z: FloatArray
    ) -> tuple[int, list[Finding]]:
        """Judge records up to the first alarm or change of stride; return how many, and what."""
        stride = loss.stride[0]
        if np.isnan(stride):  # the baseline is not ready
            unknown = _num_leading(np.isnan(loss.stride))
            self._num_records += unknown
            return unknown, []
        if stride != self._stride:
            self._change_stride(float(stride))
        steady = _num_leading(loss.stride == stride)
        series, loss, near = series[:steady], loss[:steady], near[:steady]
        sums = [known.copy() for known in self._all_sums()]
        scores = _score_tests(loss.z, near.z, norm_z[:steady], sums)
        lowest = list(self._lows)
        if (scores > np.array(lowest)[:, None]).any():
            lowest = self._history.lowest_thresholds(self._limits.bounds, steady)
        findings: list[Finding] = []
        done = 0
        for at in np.flatnonzero((scores > np.array(lowest)[:, None]).any(axis=0)).tolist():
            self._history.update(scores[:, done:at])
            self._remember(series, loss, done, at + 1)
            done = at + 1
            against = loss.one(at), near.one(at)
            finding = self._judge(scores[:, at], series.one(at), *against, float(norm_z[at]))
            if finding is not None:
                findings.append(finding)
                if finding.severity is Severity.ALARM:  # its evidence is used up
                    self._clear_sums()
                    self._history.drop_current()
                    return done, findings
            self._history.update(scores[:, at:done])
        self._remember(series, loss, done, steady)
        self._history.update(scores[:, done:])
        self._sums, self._joint_sums, self._near_sums = sums
        return steady, findings

    def _remember(self, series: Series, loss: Scores, first: int, last: int) -> None:
        """Add records to what is remembered of the latest."""
        self._num_records += last - first
        self._best = min(self._best, float(loss.expected[first:last].min(initial=math.inf)))
        newest = slice(max(last - _LONGEST, first), last)
        columns = series.tick, series.step, loss.z, series.value
        self._recent.extend(zip(*(column[newest].tolist() for column in columns), strict=True))

    def _judge(
        self, scores: FloatArray, point: Point, loss: Score, near: Score, norm_z: float
    ) -> Finding | None:
        """Return what the scores of a record show; None if that is nothing, or was just said."""
        near = near if near.is_known else loss
        hit = self._exceeded(scores.tolist(), loss, near, norm_z)
        if hit is None:
            return None
        if hit.severity is not Severity.ALARM:
            if self._num_records - self._warned < RECORDS_PER_WARNING:
                return None
            self._warned = self._num_records
        return self._finding(hit, point, near if hit.test >= NEAR else loss)

    def _exceeded(
        self, scores: Sequence[float], loss: Score, near: Score, norm_z: float
    ) -> _Hit | None:
        """Return the first test that alarms, or else warns; None if none is beyond its limit."""
        limits = self._limits
        is_calm = self._domain.is_log and self._stride >= 2 and loss.scale <= CALM_SCALE
        is_new = self._num_records <= limits.burn_in_records and not is_calm
        burn_in = limits.burn_in if is_new else 0.0
        has_norm = norm_z == norm_z
        warning = None
        for test, score in enumerate(scores):
            bounds = self._limits.bounds[test]
            if score <= bounds.low or (test == NEAR and has_norm):
                continue
            if test >= NEAR and loss.recurs:  # neighbours do not show a second level
                continue
            threshold = burn_in + self._history.threshold(test, bounds)
            known = loss
            if test >= NEAR:
                known = near
                threshold *= WITH_NORM if has_norm else 1.0
            rise = score / ROOTS[test] * known.scale
            whole = self._rise(LENGTHS[test]) * loss.scale
            is_high = self._domain.share(rise, known.expected) > MIN_RISE[test]
            is_high |= self._domain.share(whole, loss.expected) > CALM_RISE
            if score <= threshold or not is_high or not self._exceeds_rounding(loss, rise):
                continue
            level = min(bounds.max_level, self._history.return_level(test))
            is_news = self._start.is_news(
                best=self._best,
                before=loss.expected,
                now=loss.expected + max(rise, whole),
                is_slow=LENGTHS[test] >= SLOW_RECORDS,
            )
            if score > level and is_news:
                return _Hit(test, score, threshold, Severity.ALARM)
            warning = warning or _Hit(test, score, threshold, Severity.WARN)
        return warning

    def _rise(self, length: int) -> float:
        """Return the mean of the latest scores: clipped ones would hide the rise of a calm loss."""
        return sum(z for _, _, z, _ in islice(reversed(self._recent), length)) / length

    def _exceeds_rounding(self, loss: Score, rise: float) -> bool:
        """Return whether a rise is more than the losses are rounded by."""
        back = self._domain.back
        losses = (float(f"{back(value):.{MAX_DIGITS}g}") for _, _, _, value in self._recent)
        finest = min(map(grain, losses))
        return back(loss.expected + rise) - back(loss.expected) > MIN_GRAINS * finest

    def _finding(self, hit: _Hit, point: Point, loss: Score) -> Finding:
        onset_tick, onset_step = _onset(self._recent)
        back = self._domain.back
        expected = back(loss.expected)
        return point.finding(
            self.name,
            Symptom.LOSS_SPIKE,
            hit.severity,
            LOSS,
            value=back(point.value),
            expected=expected,
            limit=back(loss.expected + hit.threshold / ROOTS[hit.test] * loss.scale),
            onset_tick=onset_tick,
            facts={
                "score": hit.score,
                "threshold": hit.threshold,
                "records": float(LENGTHS[hit.test]),
                "with_norm": float(JOINT <= hit.test < NEAR),
                "scale": back(loss.expected + loss.scale) - expected,
                "onset_step": float(onset_step),
            },
        )

    def _all_sums(self) -> tuple[RunningSums, RunningSums, RunningSums]:
        return self._sums, self._joint_sums, self._near_sums

    def _clear_sums(self) -> None:
        for sums in self._all_sums():
            sums.clear()
        self._recent.clear()


def _num_leading(is_so: BoolArray) -> int:
    """Return how many records at the beginning are so."""
    return int(np.argmin(np.append(is_so, False)))


def _score_tests(
    z: FloatArray, near_z: FloatArray, norm_z: FloatArray, sums: Sequence[RunningSums]
) -> FloatArray:
    """Return the scores of each test, a row each, and add the records to the sums."""
    near_z = np.where(np.isnan(near_z), 0.0, near_z)
    both = np.minimum(np.maximum(z, near_z), NORM_SHARE * norm_z)
    both = np.where(np.isnan(norm_z), NO_NORM, both)
    clipped = (
        np.clip(z, LOWEST, HIGHEST),
        np.clip(both, LOWEST, HIGHEST),
        np.clip(near_z, LOWEST, HIGHEST_NEAR),
    )
    of_loss, of_both, of_near = (
        known.add_many(values) for known, values in zip(sums, clipped, strict=True)
    )
    raw = np.stack((z, *of_loss, both, *of_both, near_z, *of_near))
    return np.asarray(raw / np.array(ROOTS)[:, None])


def _onset(recent: Sequence[tuple[int, int, float, float]]) -> tuple[int, int]:
    """Return where the rise that ends with the last record most likely began."""
    onset, excess, best = recent[-1], 0.0, -math.inf
    for entry in reversed(recent):
        excess += min(max(entry[2], LOWEST), HIGHEST) - ONSET_SCORE
        if excess > best:
            best, onset = excess, entry
    return onset[0], onset[1]
