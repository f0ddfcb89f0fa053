"""NormTrend: weight norms that begin to grow or shrink faster than they did.

What is compared is the relative change of a norm per step and unit of learning rate, over 8 records
at a time: weights move in proportion to the rate, so warm-up and decay leave it where it is.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LR, PARAM_NORM
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.range_test import Outside, Span, Stray
from trimtab.detect.tools.rows import Row, Seen

CELL = 8
"""Records over which a change is taken. Source: measured in the lab; 4 and 16 find less."""

GROUP = Span(before=12, newest=3, widths=1.0)
"""Source: 44 healthy runs of the lab stay under 0.7 widths outside, attention weights that grow by
0.5 % a step are 1.4 outside, a decay that is 20 times too strong likewise."""

WHOLE = Span(before=12, newest=3, widths=2.0)
"""For the embedding, and for the whole model that it makes most of: healthy runs reach 1.4."""

MOST = 1e30
"""A change beyond this is no trend, and its range could not be told in numbers."""


class NormTrend:
    """One finding when the trend of a weight norm changes."""

    name = "norm-trend"
    hears = Known.WENT_BACK | Known.CHANGED

    def __init__(self) -> None:
        self._trends: dict[str, _Trend] = {}

    def hear(self, known: Known) -> None:
        """What comes now does not go on from here."""
        for trend in self._trends.values():
            trend.restart()

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings: list[Finding] = []
        rate = row.signals.get(LR, 0.0)
        if not 0.0 < rate < math.inf:
            return findings
        for name, value in row.signals.items():
            if name.startswith(PARAM_NORM) and 0.0 < value < math.inf:
                stray = self._trend(name).take(value, row.step, rate)
                if stray is not None:
                    findings.append(_finding(name, Seen(row.tick, row.step, value), stray))
        return findings

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        names = [name for name in block.columns if name.startswith(PARAM_NORM)]
        return [finding for name in names for finding in self._sweep_one(block, name)]

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered of each norm."""
        return {name: trend.state_dict() for name, trend in self._trends.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._trends = {}
        for name, part in state.items():
            self._trend(name).load_state_dict(part)

    def _trend(self, name: str) -> "_Trend":
        trend = self._trends.get(name)
        if trend is None:
            is_whole = name in (PARAM_NORM, f"{PARAM_NORM}/embedding")
            trend = self._trends[name] = _Trend(WHOLE if is_whole else GROUP)
        return trend

    def _sweep_one(self, block: Block, name: str) -> Iterator[Finding]:
        column, rate = block.columns[name], block.column(LR)
        with np.errstate(invalid="ignore"):
            good = column.finite & (column.values > 0) & rate.finite & (rate.values > 0)
        rows = np.flatnonzero(good)
        if not len(rows):
            return
        trend = self._trend(name)
        ends = rows[trend.ends(len(rows))]
        if trend.is_new:  # its first record is where the first cell begins
            trend.begin(float(column.values[rows[0]]), int(block.step[rows[0]]))
        values, steps = column.values[ends], block.step[ends]
        for at, stray in trend.sweep(values, steps, rate.values[ends], len(rows)):
            row = int(ends[at])
            yield _finding(name, Seen.at(block, row, values[at]), stray)


class _Trend:
    """One norm: where the cell began, how many records it has, and the cells before it."""

    def __init__(self, span: Span) -> None:
        self._outside = Outside(span)
        self.restart()

    @property
    def is_new(self) -> bool:
        return self._count < 0

    def restart(self) -> None:
        self._start, self._step, self._count = 0.0, 0, -1
        self._outside.restart()

    def begin(self, value: float, step: int) -> None:
        self._start, self._step = value, step

    def take(self, value: float, step: int, rate: float) -> Stray | None:
        if self._count < 0:
            self.begin(value, step)
        self._count += 1
        if self._count < CELL:
            return None
        self._count = 0
        steps = step - self._step
        change = (value / self._start - 1.0) / rate
        self.begin(value, step)
        if steps <= 0 or not abs(change) < MOST:
            self._outside.restart()
            return None
        return self._outside.take(change / steps)

    def ends(self, count: int) -> slice:
        """Which of the next records end a cell."""
        return slice(CELL - 1 - self._count, count, CELL)

    def sweep(self, values: Any, steps: Any, rates: Any, count: int) -> Iterator[tuple[int, Stray]]:
        """Judge the ends of cells, of so many records in all."""
        self._count += count - CELL * len(values)
        if not len(values):
            return
        starts = np.concatenate(([self._start], values[:-1]))
        spans = np.diff(np.concatenate(([self._step], steps)))
        self.begin(float(values[-1]), int(steps[-1]))
        with np.errstate(all="ignore"):
            changes = (values / starts - 1.0) / rates
            cells = changes / spans
            bad = np.flatnonzero((spans <= 0) | ~(np.abs(changes) < MOST))
        first = 0
        for last in [*bad.tolist(), len(cells)]:
            for at, stray in self._outside.sweep(cells[first:last]):
                yield first + at, stray
            if last < len(cells):
                self._outside.restart()
            first = last + 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "cell": [self._start, self._step, self._count],
            "outside": self._outside.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start, self._step, self._count = state["cell"]
        self._outside.load_state_dict(state["outside"])


def _finding(name: str, seen: Seen, stray: Stray) -> Finding:
    return Finding(
        detector=NormTrend.name,
        symptom=Symptom.NORM_DRIFT,
        severity=Severity.ALARM,
        signal=name,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        false_per_10k=FALSE_PER_10K.get(NormTrend.name),
        facts={"growth": stray.value, "least_before": stray.low, "most_before": stray.high},
    )
