"""LossDetectors: loss and norms, each scored once for the detectors that share the scores.

grad_norm, update / lr, g^2/v --> SignalBaseline --> NormSpike
                                      | score of grad_norm
loss --> SignalBaseline, Neighbours --> LossSpike
         SignalBaseline --> CellMeans --> LevelShift
         Turn

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

from trimtab.core.block import Block, FloatArray, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import SIGMA, TINY, median, medians
from trimtab.core.signals import GRAD_NORM, LOSS
from trimtab.core.state import Stateful, StatefulDict
from trimtab.detect.loss.cells import CellMeans
from trimtab.detect.loss.level_shift import LevelShift, Turn
from trimtab.detect.loss.loss_spike import LossSpike
from trimtab.detect.loss.meaning import (
    POSITIVE,
    SIGNED,
    START_RECORDS,
    Domain,
    LossMeaning,
    LossStart,
)
from trimtab.detect.loss.norm_spike import NORMS, NormSpike, logarithms, with_loss
from trimtab.detect.tools.baseline import (
    LOG_NORM_BASELINE,
    MIN_WINDOW,
    RECORDS_PER_CELL,
    BaselineSpec,
    Score,
    Scores,
    SignalBaseline,
    trust_in,
)
from trimtab.detect.tools.series import Point, Series, windows_over

NEAR, NEAREST = 8, 3
"""Records whose medians a loss must exceed. Source: measured; both together find a tenth more of
the spikes that one record begins than either alone, at as few false alarms."""

WINDOW = 128
"""Distances from the median of the 8 before; their median gives the scale. Source: measured, 64 are
too few, 96 and 128 equal; the longer, the less one spike hides the next."""

_BATCH = 16_384
"""Losses that are scored at once: a bound on memory."""


class Neighbours(Stateful):
    """Scores finite losses one by one, or many at once with the same result."""

    not_saved = ("_spec",)

    def __init__(self, spec: BaselineSpec) -> None:
        self._spec = spec
        self._near: list[float] = []
        self._distances: deque[float] = deque(maxlen=WINDOW)
        self._count = 0
        """Distances that were measured; the scale is updated at every eighth."""
        self._scale: float | None = None

    def update(self, value: float) -> Score | None:
        """Score the next loss; None while too few came before it."""
        near = self._near
        if len(near) < NEAR:
            near.append(value)
            return None
        level = median(near)
        if self._count % RECORDS_PER_CELL == 0 and self._count >= MIN_WINDOW:
            self._scale = SIGMA * median(self._distances)
        score = None
        if self._scale is not None:
            expected = max(level, sorted(near[-NEAREST:])[NEAREST // 2])
            spec = self._spec
            floor = max(spec.relative_floor * abs(level), spec.absolute_floor, TINY)
            scale = max(self._scale, floor)
            score = Score((value - expected) / scale, expected, scale, 1.0)
        self._distances.append(abs(value - level))
        self._count += 1
        del near[0]
        near.append(value)
        return score

    def update_many(self, values: FloatArray) -> Scores:
        """Score the next losses, as `update` would one by one."""
        scores = Scores.unknown(len(values))
        at = 0
        while at < len(values):
            if len(self._near) < NEAR or self._count < WINDOW or self._count % RECORDS_PER_CELL:
                score = self.update(float(values[at]))
                if score is not None:
                    scores.set(at, score)
                at += 1
            else:
                at += self._score_steady(values[at : at + _BATCH], scores, at)
        return scores

    def restart(self) -> None:
        self._near = []

    def _score_steady(self, values: FloatArray, scores: Scores, offset: int) -> int:
        """Score losses from the start of a cell, with full windows; return how many."""
        series = np.concatenate((self._near, values))
        windows = windows_over(series, NEAR)[: len(values)]
        level = medians(windows)
        first, second, third = windows[:, -3], windows[:, -2], windows[:, -1]
        low, high = np.minimum(first, second), np.maximum(first, second)
        expected = np.maximum(level, np.maximum(low, np.minimum(high, third)))
        distances = np.concatenate((self._distances, np.abs(values - level)))
        looks = windows_over(distances[: len(values) + WINDOW - 1], WINDOW, RECORDS_PER_CELL)
        of_cells = SIGMA * medians(looks)
        scale = np.repeat(of_cells, RECORDS_PER_CELL)[: len(values)]
        spec = self._spec
        floor = np.maximum(spec.relative_floor * np.abs(level), max(spec.absolute_floor, TINY))
        scale = np.maximum(scale, floor)
        chosen = slice(offset, offset + len(values))
        scores.expected[chosen], scores.scale[chosen] = expected, scale
        scores.z[chosen], scores.stride[chosen] = (values - expected) / scale, 1.0
        self._near = series[-NEAR:].tolist()
        self._distances.extend(distances[-WINDOW:].tolist())
        self._count += len(values)
        self._scale = float(of_cells[-1])
        return len(values)


class LossTests(Stateful):
    """What judges a loss on one scale."""

    not_saved = ("_domain",)

    def __init__(self, domain: Domain, threshold_scale: float, *, is_measure: bool) -> None:
        self._domain = domain
        self._baseline = SignalBaseline(domain.baseline, lags=True)
        self._neighbours = Neighbours(domain.baseline)
        self._start = LossStart(domain, is_measure=is_measure)
        self._spike = LossSpike(domain, self._start, threshold_scale)
        self._cell_means = CellMeans()
        self._level = LevelShift(domain, self._start, threshold_scale)
        self._turn = Turn(domain)

    def restart(self) -> None:
        """Restart the baselines: what comes now is not comparable with the past."""
        self._baseline.restart()
        self._neighbours.restart()
        self._level.restart()
        self._turn.restart()

    def update(
        self, record: Record, loss: float, norm_z: float
    ) -> tuple[list[Finding | None], float]:
        """Return what a loss shows, and its score."""
        point = Point(record.tick, record.step, self._domain.of(loss))
        self._start.observe([point.value], record.step)
        score = self._baseline.update(point.value, record.step)
        near = self._neighbours.update(point.value)
        trust = trust_in(LOSS, record.qualities)
        if trust < 1:
            score = score and score._replace(z=score.z * trust)
            near = near and near._replace(z=near.z * trust)
        findings = [_with_confidence(self._spike.update(point, score, near, norm_z), trust)]
        findings.append(_with_confidence(self._turn.update(point), trust))
        cell = self._cell_means.update(point, score)
        if cell is not None:
            findings.append(_with_confidence(self._level.update(cell), trust))
        return findings, 0.0 if score is None else score.z

    def update_many(
        self, block: Block, rows: IntArray, norm_z: FloatArray
    ) -> tuple[list[Finding | None], FloatArray]:
        """Return what the losses of some rows show, and their scores."""
        series = Series.of(block, LOSS, rows)
        series = dataclasses.replace(series, value=self._domain.of_many(series.value))
        if len(series):
            self._start.observe(series.value[:START_RECORDS].tolist(), int(series.step[0]))
        scores = self._baseline.update_many(series.value, series.step)
        near = self._neighbours.update_many(series.value)
        trust = trust_in(LOSS, block.qualities)
        if trust < 1:
            scores = dataclasses.replace(scores, z=scores.z * trust)
            near = dataclasses.replace(near, z=near.z * trust)
        found = self._spike.update_many(series, scores, near, norm_z)
        found += self._turn.update_many(series)
        found += self._level.update_many(self._cell_means.update_many(series, scores))
        return [_with_confidence(finding, trust) for finding in found], scores.z


class LossDetectors(Detector):
    """Spikes and level shifts of the loss, and spikes of the norms that lead to them."""

    name = "loss-detectors"
    listens_to = KnownChange.CHANGED
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

    def update(self, record: Record) -> list[Finding]:
        self._meaning.observe(record)
        findings: list[Finding | None] = []
        norm_z = math.nan
        for name in NORMS:
            value = record.signals.get(name, 0.0)
            if not 0.0 < value < math.inf or NORMS[name].better in record.signals:
                continue
            logarithm = math.log(value)
            score = self._norms[name].update(logarithm, record.step)
            trust = trust_in(name, record.qualities)
            if score is not None and trust < 1:
                score = score._replace(z=score.z * trust)
            point = Point(record.tick, record.step, value)
            findings.append(
                _with_confidence(self._norm_spikes[name].update(point, logarithm, score), trust)
            )
            if name == GRAD_NORM and score is not None:
                norm_z = score.z
        loss = record.signals.get(LOSS, math.nan)
        if math.isfinite(loss):  # the loss comes first: it is what people look for
            found, z = self._judge_loss(record, loss, norm_z)
            if any(findings):
                findings = [norm and with_loss(norm, z) for norm in findings]
            findings = found + findings
        return [finding for finding in findings if finding is not None]

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        self._meaning.observe_many(block)
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
        """Restart the baselines: what comes now is not comparable with the past."""
        self._positive.restart()
        self._signed.restart()
        for baseline in self._norms.values():
            baseline.restart()

    def _judge_loss(
        self, record: Record, loss: float, norm_z: float
    ) -> tuple[list[Finding | None], float]:
        self._is_signed |= loss < 0
        tests = self._signed if self._is_signed else self._positive
        found, z = tests.update(record, loss, norm_z)
        return [self._as_said(finding) for finding in found], z

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


def _new_norm_baseline(_: str) -> SignalBaseline:
    return SignalBaseline(LOG_NORM_BASELINE, lags=False)


def _with_confidence(finding: Finding | None, trust: float) -> Finding | None:
    if finding is None or trust == 1:
        return finding
    return dataclasses.replace(finding, confidence=trust)
