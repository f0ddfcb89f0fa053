"""Ranges: noisy signals whose level moves for good.

The share of distinct tokens in a batch does not depend on the model: when its means leave the range
that they had, the mix of sources has changed. The size of updates, with the learning rate divided
out, is the optimizer's own: when it moves and stays, a moment, epsilon or the decay is another.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.block import Block, FloatArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LR, UNIQUE_TOKEN_SHARE, UPDATE_NORM
from trimtab.detect.known import Known
from trimtab.detect.outside import Outside, Span, Stray
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.rows import Row, Seen

CELL = 8
"""Records whose mean is taken."""

MOST = 1e30
"""Larger values are passed over: a mean must stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """What is asked of one signal."""

    span: Span
    symptom: Symptom
    by_rate: bool = False
    """Whether the learning rate is divided out first."""


RULES = {
    # Outside at all is enough: in shuffled data that happens once in 2.4 million records by chance.
    UNIQUE_TOKEN_SHARE: _Rule(span=Span(before=24, newest=6), symptom=Symptom.ODD_TOKENS),
    # Healthy runs of the lab's tuning split reach 0.7 widths; faults of the optimizer 1 to 20.
    UPDATE_NORM: _Rule(
        span=Span(before=16, newest=4, widths=0.85), symptom=Symptom.UPDATE_SHIFT, by_rate=True
    ),
}
"""By signal, or by what stands in front of the group's name."""


class Ranges:
    """One finding when the level of a signal has left its range."""

    name = "range"
    hears = Known.CHANGED | Known.WENT_BACK

    def __init__(self) -> None:
        self._signals: dict[str, _Means | None] = {}
        """Every signal that was seen; none if it has no rule."""

    def hear(self, known: Known) -> None:
        """Another mix, another batch or other weights, that somebody knows of."""
        for means in self._signals.values():
            if means is not None:
                means.restart()

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings = []
        signals = row.signals
        for name, value in signals.items():
            means = self._signals[name] if name in self._signals else self._watch(name)
            if means is None:
                continue
            if means.rule.by_rate:
                rate = signals.get(LR, 0.0)
                value = value / rate if 0.0 < rate < math.inf else math.nan
            if not 0.0 <= value < MOST:
                continue
            stray = means.take(value)
            if stray is not None:
                seen = Seen(row.tick, row.step, signals[name])
                findings.append(_finding(name, means.rule, seen, stray))
        return findings

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        return [finding for name in block.columns for finding in self._sweep_one(block, name)]

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered of each signal."""
        watched = {name: means for name, means in self._signals.items() if means is not None}
        return {name: means.state_dict() for name, means in watched.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._signals = {}
        for name, part in state.items():
            means = self._watch(name)
            if means is not None:
                means.load_state_dict(part)

    def _watch(self, name: str) -> "_Means | None":
        rule = RULES.get(name.partition("/")[0])
        means = self._signals[name] = None if rule is None else _Means(rule)
        return means

    def _sweep_one(self, block: Block, name: str) -> Iterator[Finding]:
        means = self._signals[name] if name in self._signals else self._watch(name)
        if means is None:
            return
        column = block.columns[name]
        values, good = column.values, column.present
        if means.rule.by_rate:
            rate = block.column(LR)
            good = good & rate.finite & (rate.values > 0)
            with np.errstate(all="ignore"):
                values = values / rate.values
        rows = np.flatnonzero(good & (values >= 0) & (values < MOST))
        for at, stray in means.sweep(values[rows]):
            row = int(rows[at])
            place = int(block.tick[row]), int(block.step[row])
            seen = Seen(*place, float(column.values[row]))
            yield _finding(name, means.rule, seen, stray)


class _Means:
    """One signal: the mean that is being taken, and the range of those before it."""

    def __init__(self, rule: _Rule) -> None:
        self.rule = rule
        self._outside = Outside(rule.span)
        self._count, self._total = 0, 0.0

    def restart(self) -> None:
        self._outside.restart()
        self._count, self._total = 0, 0.0

    def take(self, value: float) -> Stray | None:
        self._count += 1
        self._total += value
        if self._count < CELL:
            return None
        mean = self._total / CELL
        self._count, self._total = 0, 0.0
        return self._outside.take(mean)

    def sweep(self, values: FloatArray) -> Iterator[tuple[int, Stray]]:
        """Judge many values; say at which of them a mean was outside."""
        head = min(-self._count % CELL, len(values))
        for at in range(head):  # the rest of a cell that was begun before
            stray = self.take(float(values[at]))
            if stray is not None:
                yield at, stray
        tail = head + (len(values) - head) // CELL * CELL
        parts = values[head:tail].reshape(-1, CELL)
        total = np.zeros(len(parts))
        for place in range(CELL):  # in order: numpy's own sum would round differently
            total = total + parts[:, place]
        for cell, stray in self._outside.sweep(total / CELL):
            yield head + cell * CELL + CELL - 1, stray
        for value in values[tail:].tolist():
            self.take(value)

    def state_dict(self) -> dict[str, Any]:
        return {"cell": [self._count, self._total], "outside": self._outside.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count, self._total = state["cell"]
        self._outside.load_state_dict(state["outside"])


def _finding(name: str, rule: _Rule, seen: Seen, stray: Stray) -> Finding:
    return Finding(
        detector=Ranges.name,
        symptom=rule.symptom,
        severity=Severity.ALARM,
        signal=name,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        false_per_10k=FALSE_PER_10K.get(Ranges.name),
        facts={"mean": stray.value, "least_before": stray.low, "most_before": stray.high},
    )
