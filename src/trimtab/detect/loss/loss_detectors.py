"""LossDetectors: loss and norms, each scored once for the detectors that share the scores.

grad_norm, update / lr, g^2/v --> ReturningBaseline --> NormSpike
                                      | score of grad_norm
loss --> ReturningBaseline, Neighbours --> LossSpike
         ReturningBaseline --> CellMeans --> LevelShift
         TrendReversal

Neighbours: how far a loss rises above the few just before it.

    [ ........ 8 ........ ]
               [ .. 3 .. ] now        rise = now - the higher of the two medians

In many runs the loss swings with the order of the data, by more than its noise and over dozens of
steps. Against a window of 96 records the swing is noise, and a spike must stand out from both; the
neighbours of a record swing with it. The price is a short memory: after four high records the
neighbours are high themselves, so this sees how a spike begins, and the baseline the rest.
"""

import dataclasses
import math
from collections import deque

import numpy as np

from trimtab.core.block import Block, FloatArray, IntArray
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import SIGMA, TINY, medians
from trimtab.core.signals import GRAD_NORM, LOSS
from trimtab.core.state import Stateful, StatefulDict
from trimtab.detect.loss.cells import CellMeans
from trimtab.detect.loss.level_shift import LevelShift, TrendReversal
from trimtab.detect.loss.loss_spike import LossSpike
from trimtab.detect.loss.meaning import (
    POSITIVE,
    SIGNED,
    START_RECORDS,
    ComparisonScale,
    LossMeaning,
    LossStart,
)
from trimtab.detect.loss.norm_spike import NORMS, NormSpike, logarithms, with_loss
from trimtab.detect.tools.baseline import (
    LOG_NORM_BASELINE,
    MIN_WINDOW,
    RECORDS_PER_CELL,
    BaselineSpec,
    Scores,
    SignalBaseline,
    trust_in,
)
from trimtab.detect.tools.series import Series, windows_over

NEAR, NEAREST = 8, 3
"""Records whose medians a loss must exceed. Source: measured; both together find a tenth more of
the spikes that one record begins than either alone, at as few false alarms."""

WINDOW = 128
"""Distances from the median of the 8 before; their median gives the scale. Source: measured, 64 are
too few, 96 and 128 equal; the longer, the less one spike hides the next."""

_BATCH = 16_384
"""Losses that are scored at once: a bound on memory."""


class Neighbours(Stateful):
    """Scores finite losses against those just before them."""

    not_saved = ("_spec",)

    def __init__(self, spec: BaselineSpec) -> None:
        self._spec = spec
        self._near: list[float] = []
        self._distances: deque[float] = deque(maxlen=WINDOW)
        self._count = 0
        """Distances that were measured; the scale is updated at every eighth."""
        self._scale = math.nan

    def update(self, values: FloatArray) -> Scores:
        """Score the next losses; they are unknown while too few came before."""
        scores = Scores.unknown(len(values))
        at = max(min(NEAR - len(self._near), len(values)), 0)
        self._near += values[:at].tolist()
        while at < len(values):
            count = _BATCH
            if self._count < WINDOW or self._count % RECORDS_PER_CELL:
                count = RECORDS_PER_CELL - self._count % RECORDS_PER_CELL  # to the end of the cell
            at += self._score(values[at : at + count], scores, at)
        return scores

    def restart(self) -> None:
        self._near = []

    def _score(self, values: FloatArray, scores: Scores, offset: int) -> int:
        """Score losses up to the end of a cell, or more from its start on; return how many."""
        series = np.concatenate((self._near, values))
        windows = windows_over(series, NEAR)[: len(values)]
        level = medians(windows)
        first, second, third = windows[:, -3], windows[:, -2], windows[:, -1]
        low, high = np.minimum(first, second), np.maximum(first, second)
        expected = np.maximum(level, np.maximum(low, np.minimum(high, third)))
        distances = np.concatenate((self._distances, np.abs(values - level)))
        scale = np.full(len(values), self._scale)
        if self._count % RECORDS_PER_CELL == 0 and self._count >= MIN_WINDOW:
            known = min(self._count, WINDOW)
            looks = windows_over(distances[: len(values) + known - 1], known, RECORDS_PER_CELL)
            scale = np.repeat(SIGMA * medians(looks), RECORDS_PER_CELL)[: len(values)]
        self._near = series[-NEAR:].tolist()
        self._distances.extend(distances[-len(values) :][-WINDOW:].tolist())
        self._count += len(values)
        self._scale = float(scale[-1])
        if not math.isnan(self._scale):
            spec = self._spec
            floor = np.maximum(spec.relative_floor * np.abs(level), max(spec.absolute_floor, TINY))
            scale = np.maximum(scale, floor)
            chosen = slice(offset, offset + len(values))
            scores.expected[chosen], scores.scale[chosen] = expected, scale
            scores.z[chosen], scores.stride[chosen] = (values - expected) / scale, 1.0
        return len(values)


REMEMBERED, MEASURED = 1024, 128
"""Values before which a run may go back, and those before the step it goes back to that make the
baseline there: its window, the gap and two cells."""


class ReturningBaseline(Stateful):
    """A baseline that goes back with its run: later steps are no past of an earlier one."""

    def __init__(self, spec: BaselineSpec, *, lags: bool) -> None:
        self._baseline = SignalBaseline(spec, lags=lags)
        self._past: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        """Step and value."""
        self._goes_back = False
        """Whether the next value is at an earlier step."""

    def update_many(self, values: FloatArray, steps: IntArray) -> Scores:
        if self._goes_back and len(steps):
            self._return_to(int(steps[0]))
        latest = steps[-REMEMBERED:].tolist(), values[-REMEMBERED:].tolist()
        self._past.extend(zip(*latest, strict=True))
        return self._baseline.update_many(values, steps)

    def restart(self) -> None:
        self._baseline.restart()
        self._past.clear()

    def go_back(self) -> None:
        self._goes_back = True

    def _return_to(self, step: int) -> None:
        """Restart from the values before this step."""
        self._goes_back = False
        before = [(at, value) for at, value in self._past if at < step]
        self.restart()
        self._past.extend(before)
        for at, value in before[-MEASURED:]:
            self._baseline.update(value, at)


class LossTests(Stateful):
    """What judges a loss on one scale."""

    not_saved = ("_domain",)

    def __init__(
        self, domain: ComparisonScale, threshold_scale: float, *, is_measure: bool
    ) -> None:
        self._domain = domain
        self._baseline = ReturningBaseline(domain.baseline, lags=True)
        self._neighbours = Neighbours(domain.baseline)
        self._start = LossStart(domain, is_measure=is_measure)
        self._spike = LossSpike(domain, self._start, threshold_scale)
        self._cell_means = CellMeans()
        self._level = LevelShift(domain, self._start, threshold_scale)
        self._turn = TrendReversal(domain)

    def restart(self) -> None:
        """Restart the baselines: what comes now is not comparable with the past."""
        self._baseline.restart()
        self._restart_others()

    def go_back(self) -> None:
        """Judge what comes now by the losses before its step: the run has gone back to it."""
        self._baseline.go_back()
        self._restart_others()

    def _restart_others(self) -> None:
        self._neighbours.restart()
        self._level.restart()
        self._turn.restart()

    def update_many(
        self, block: Block, rows: IntArray, norm_z: FloatArray
    ) -> tuple[list[Finding | None], FloatArray]:
        """Return what the losses of some rows show, and their scores."""
        series = Series.of(block, LOSS, rows)
        series = dataclasses.replace(series, value=self._domain.of_many(series.value))
        if len(series):
            self._start.observe(series.value[:START_RECORDS].tolist(), int(series.step[0]))
        scores = self._baseline.update_many(series.value, series.step)
        near = self._neighbours.update(series.value)
        trust = trust_in(LOSS, block.qualities)
        if trust < 1:
            scores = dataclasses.replace(scores, z=scores.z * trust)
            near = dataclasses.replace(near, z=near.z * trust)
        found = self._spike.update_many(series, scores, near, norm_z)
        found += self._turn.update_many(series)
        found += self._level.update_many(self._cell_means.update(series, scores))
        return [_with_confidence(finding, trust) for finding in found], scores.z


class LossDetectors(Detector):
    """Spikes and level shifts of the loss, and spikes of the norms that lead to them."""

    name = "loss-detectors"
    listens_to = KnownChange.CHANGED | KnownChange.WENT_BACK
    skips_odd_batches = True

    def __init__(self, threshold_scale: float = 1.0, objective: str = "auto") -> None:
        self._meaning = LossMeaning(objective)
        is_measure = objective == "measure"
        self._positive = LossTests(POSITIVE, threshold_scale, is_measure=is_measure)
        self._signed = LossTests(SIGNED, threshold_scale, is_measure=is_measure)
        self._is_signed = False
        """Whether a loss was negative."""
        self._norms = StatefulDict(_new_norm_baseline)
        self._norm_spikes = StatefulDict(NormSpike)

    def update_many(self, block: Block) -> list[Finding]:
        self._meaning.observe(block)
        findings: list[Finding | None] = []
        norm_z = np.full(len(block), np.nan)
        for name in NORMS:
            column = block.columns.get(name)
            if column is not None:
                judged = column.finite & (column.values > 0)
                judged &= ~block.column(NORMS[name].better).present
                rows = np.flatnonzero(judged)
                scores, found = self._judge_norms(block, name, rows)
                findings += found
                if name == GRAD_NORM:
                    norm_z[rows] = scores.z
        rows = np.flatnonzero(block.column(LOSS).finite)
        found, z = self._judge_losses(block, rows, norm_z[rows])
        z_at = dict(zip(block.tick[rows].tolist(), z.tolist(), strict=True)) if findings else {}
        norms = [norm and with_loss(norm, z_at.get(norm.tick, 0.0)) for norm in findings]
        return [finding for finding in found + norms if finding is not None]

    def on_event(self, change: KnownChange) -> None:
        """Restart the baselines, or go back with the run: what comes now has another past."""
        parts: list[LossTests | ReturningBaseline] = [self._positive, self._signed]
        for part in [*parts, *self._norms.values()]:
            if KnownChange.CHANGED in change:
                part.restart()
            else:
                part.go_back()

    def _judge_losses(
        self, block: Block, rows: IntArray, norm_z: FloatArray
    ) -> tuple[list[Finding | None], FloatArray]:
        """Return what the losses show, and their scores."""
        is_negative = block.column(LOSS).values[rows] < 0
        if self._is_signed or not is_negative.any():
            tests = self._signed if self._is_signed else self._positive
            found, z = tests.update_many(block, rows, norm_z)
            return [self._as_said(finding) for finding in found], z
        first = int(np.argmax(is_negative))
        found, z = self._judge_losses(block, rows[:first], norm_z[:first])
        self._is_signed = True
        later, later_z = self._judge_losses(block, rows[first:], norm_z[first:])
        return found + later, np.concatenate((z, later_z))

    def _as_said(self, finding: Finding | None) -> Finding | None:
        """Return a finding about the loss as a warning where the loss is no measure of health."""
        if finding is None or finding.severity is not Severity.ALARM:
            return finding
        # Slow rises are what a loss without a direction does; sudden ones need not be.
        is_slow = finding.symptom == Symptom.LEVEL_SHIFT
        since = finding.onset_tick or finding.tick
        if is_slow and self._meaning.has_direction(since) is not False:
            return finding
        if not is_slow and not self._meaning.is_surrogate(finding.tick):
            return finding
        return dataclasses.replace(finding, severity=Severity.WARN)

    def _judge_norms(
        self, block: Block, name: str, rows: IntArray
    ) -> tuple[Scores, list[Finding | None]]:
        series = Series.of(block, name, rows)
        log_norms = logarithms(series.value.tolist())
        scores = self._norms[name].update_many(log_norms, series.step)
        trust = trust_in(name, block.qualities)
        if trust < 1:
            scores = dataclasses.replace(scores, z=scores.z * trust)
        found = self._norm_spikes[name].update_many(series, log_norms, scores)
        return scores, [_with_confidence(finding, trust) for finding in found]


def _new_norm_baseline(_: str) -> ReturningBaseline:
    return ReturningBaseline(LOG_NORM_BASELINE, lags=False)


def _with_confidence(finding: Finding | None, trust: float) -> Finding | None:
    if finding is None or trust == 1:
        return finding
    return dataclasses.replace(finding, confidence=trust)
