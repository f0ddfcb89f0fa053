"""Frozen: updates or gradients that are exactly zero while the learning rate is not.

A step that a loss scaler skips, or that was discarded on purpose, has a zero update as well, so
zeros are needed over several steps. Groups are judged one by one: in the global norm a frozen one
is hidden by the others.
"""

import numpy as np

from trimtab.core.block import Block, BoolArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import DISCARDED, GRAD_NORM, GRAD_NORM_OF, LR, UPDATE_NORM

MIN_TICKS = 16
"""Ticks from the first zero to the last, both counted. Chosen: a scaler that finds its first scale
skips up to a dozen steps."""

MIN_ZEROS = 8
"""Zeros in a row, where not every step is measured. Chosen: half of those of a run that measures
every step, so that measuring every second one finds it as soon."""

_PREFIXES = (UPDATE_NORM, GRAD_NORM_OF)


class Frozen(Detector):
    """One finding for each signal that stays at zero."""

    name = "frozen"

    def __init__(self) -> None:
        self._zeros: dict[str, int] = {}
        """Zeros in a row, by signal; only signals that are at zero now."""
        self._since: dict[str, int] = {}
        """The tick of the first of them."""
        self._reported: dict[str, bool] = {}

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        findings: list[Finding] = []
        signals = record.signals
        if 0.0 not in signals.values() and not self._zeros:
            return findings
        if signals.get(LR, 1.0) == 0.0 or signals.get(DISCARDED, 0.0) == 1.0:
            return findings
        for name, value in signals.items():
            if _is_judged(name):
                findings += self._judge(name, value, record.step, record.tick)
        return findings

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        rate, discarded = block.column(LR), block.column(DISCARDED)
        counts = ~((rate.values == 0.0) & rate.present)
        counts &= ~((discarded.values == 1.0) & discarded.present)
        names = [name for name in block.columns if _is_judged(name)]
        return [finding for name in names for finding in self._judge_signal(block, name, counts)]

    def _judge_signal(self, block: Block, name: str, counts: BoolArray) -> list[Finding]:
        column = block.columns[name]
        rows = np.flatnonzero(column.present & counts)
        values = column.values[rows]
        # Only zeros, and what ends a row of them, are looked at.
        is_zero = values == 0.0
        ends = ~is_zero & np.concatenate(([name in self._zeros], is_zero[:-1]))
        return [
            finding
            for place in np.flatnonzero(is_zero | ends).tolist()
            for finding in self._judge(
                name, values[place], int(block.step[rows[place]]), int(block.tick[rows[place]])
            )
        ]

    def _judge(self, name: str, value: float, step: int, tick: int) -> list[Finding]:
        if value != 0.0:
            self._zeros.pop(name, None)
            self._since.pop(name, None)
            self._reported.pop(name, None)
            return []
        if name in self._reported:
            return []
        zeros = self._zeros[name] = self._zeros.get(name, 0) + 1
        ticks = tick - self._since.setdefault(name, tick) + 1
        if zeros < MIN_ZEROS or ticks < MIN_TICKS:
            return []
        self._reported[name] = True
        return [_finding(name, step, tick, zeros)]


def _is_judged(name: str) -> bool:
    return name == GRAD_NORM or name.startswith(_PREFIXES)


def _finding(name: str, step: int, tick: int, zeros: int) -> Finding:
    return Finding(
        detector=Frozen.name,
        symptom=Symptom.FROZEN,
        severity=Severity.ALARM,
        signal=name,
        step=step,
        tick=tick,
        value=0.0,
        facts={"records": float(zeros)},
    )
