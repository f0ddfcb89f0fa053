"""LossWatch: loss and norms, each scored once against its own past, and the tests on those scores.

grad_norm --> Baseline --> NormSpike          loss --> Baseline, Neighbours --> LossSpike (with the
update_norm, g^2/v likewise                           Baseline --> Cells --> Level     norm)
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from trimtab.core.block import Block, FloatArray, IntArray
from trimtab.core.findings import Finding
from trimtab.core.signals import GRAD_NORM, LOSS
from trimtab.detect.known_events import Known
from trimtab.detect.loss.level_shift import Level
from trimtab.detect.loss.loss_spike import LossSpike
from trimtab.detect.loss.norm_spike import NORMS, NormSpike, logarithms
from trimtab.detect.tools.baseline import LOG_NORM_SHAPE, LOSS_SHAPE, Baseline, Scores
from trimtab.detect.tools.cell_means import Cells
from trimtab.detect.tools.neighbours import Neighbours
from trimtab.detect.tools.rows import Row, Seen, Series
from trimtab.detect.trust import trust_in

_LARGEST = 1e100
"""Finite losses beyond this count as this: their differences must not overflow."""


class LossWatch:
    """Spikes, levels and the norms that lead to them."""

    name = "loss-watch"
    hears = Known.CHANGED

    def __init__(self, threshold_scale: float = 1.0) -> None:
        self._baseline = Baseline(LOSS_SHAPE, lags=True)
        self._neighbours = Neighbours()
        self._spike = LossSpike(threshold_scale)
        self._cells = Cells()
        self._level = Level(threshold_scale)
        self._norms = {name: Baseline(LOG_NORM_SHAPE, lags=False) for name in NORMS}
        self._norm_spikes = {name: NormSpike(name) for name in NORMS}

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings: list[Finding | None] = []
        norm_z = math.nan
        for name, baseline in self._norms.items():
            value = row.signals.get(name, 0.0)
            if not 0.0 < value < math.inf:
                continue
            logarithm = math.log(value)
            score = baseline.take(logarithm, row.step)
            trust = trust_in(name, row.qualities)
            if score is not None and trust < 1:
                score = score._replace(z=score.z * trust)
            seen = Seen(row.tick, row.step, value)
            findings.append(_sure(self._norm_spikes[name].take(seen, logarithm, score), trust))
            if name == GRAD_NORM and score is not None:
                norm_z = score.z
        loss = row.signals.get(LOSS, math.nan)
        if math.isfinite(loss):  # the loss first: it is what people look for
            findings = self._take_loss(row, loss, norm_z) + findings
        return [finding for finding in findings if finding is not None]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        findings: list[Finding | None] = []
        norm_z = np.full(len(block), np.nan)
        for name in NORMS:
            column = block.columns.get(name)
            if column is not None:
                rows = np.flatnonzero(column.finite & (column.values > 0))
                scores, found = self._sweep_norm(block, name, rows)
                findings += found
                if name == GRAD_NORM:
                    norm_z[rows] = scores.z
        rows = np.flatnonzero(block.column(LOSS).finite)
        findings = self._sweep_loss(block, rows, norm_z[rows]) + findings
        return [finding for finding in findings if finding is not None]

    def hear(self, known: Known) -> None:
        """What comes now is not comparable with the past."""
        self._baseline.restart()
        self._neighbours.restart()
        self._level.restart()
        for baseline in self._norms.values():
            baseline.restart()

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {name: part.state_dict() for name, part in self._parts()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the watch that `state_dict` described."""
        for name, part in self._parts():
            part.load_state_dict(state[name])

    def _parts(self) -> Iterable[tuple[str, Any]]:
        yield "baseline", self._baseline
        yield "neighbours", self._neighbours
        yield "spike", self._spike
        yield "cells", self._cells
        yield "level", self._level
        for name in NORMS:
            yield f"baseline of {name}", self._norms[name]
            yield f"spike of {name}", self._norm_spikes[name]

    def _take_loss(self, row: Row, loss: float, norm_z: float) -> list[Finding | None]:
        seen = Seen(row.tick, row.step, min(max(loss, -_LARGEST), _LARGEST))
        score = self._baseline.take(seen.value, row.step)
        near = self._neighbours.take(seen.value)
        trust = trust_in(LOSS, row.qualities)
        if trust < 1:
            score = score and score._replace(z=score.z * trust)
            near = near and near._replace(z=near.z * trust)
        findings = [_sure(self._spike.take(seen, score, near, norm_z), trust)]
        cell = self._cells.take(seen, score)
        if cell is not None:
            findings.append(_sure(self._level.take(cell), trust))
        return findings

    def _sweep_loss(self, block: Block, rows: IntArray, norm_z: FloatArray) -> list[Finding | None]:
        series = Series.of(block, LOSS, rows)
        series = dataclasses.replace(series, value=np.clip(series.value, -_LARGEST, _LARGEST))
        scores = self._baseline.sweep(series.value, series.step)
        near = self._neighbours.sweep(series.value)
        trust = trust_in(LOSS, block.qualities)
        if trust < 1:
            scores = dataclasses.replace(scores, z=scores.z * trust)
            near = dataclasses.replace(near, z=near.z * trust)
        found = self._spike.sweep(series, scores, near, norm_z)
        found += self._level.sweep(self._cells.sweep(series, scores))
        return [_sure(finding, trust) for finding in found]

    def _sweep_norm(
        self, block: Block, name: str, rows: IntArray
    ) -> tuple[Scores, list[Finding | None]]:
        series = Series.of(block, name, rows)
        log_norms = logarithms(series.value.tolist())
        scores = self._norms[name].sweep(log_norms, series.step)
        trust = trust_in(name, block.qualities)
        if trust < 1:
            scores = dataclasses.replace(scores, z=scores.z * trust)
        found = self._norm_spikes[name].sweep(series, log_norms, scores)
        return scores, [_sure(finding, trust) for finding in found]


def _sure(finding: Finding | None, trust: float) -> Finding | None:
    """The finding with the trust in what it was found from."""
    if finding is None or trust == 1:
        return finding
    return dataclasses.replace(finding, confidence=trust)
