"""Frozen: updates or gradients that are exactly zero while the learning rate is not.

A step that a loss scaler skips, or that was discarded on purpose, has a zero update as well, so
several in a row are needed. Groups are judged one by one: in the global norm a frozen one is hidden
by the others.
"""

import numpy as np

from trimtab.core.block import Block, BoolArray
from trimtab.core.detector import Detector, Row
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import DISCARDED, GRAD_NORM, GRAD_NORM_OF, LR, UPDATE_NORM
from trimtab.detect.tools.streaks import reached

MIN_ZEROS = 16
"""Zeros in a row. Chosen: a scaler that finds its first scale skips up to a dozen steps."""

_PREFIXES = (UPDATE_NORM, GRAD_NORM_OF)


class Frozen(Detector):
    """One finding for each signal that stays at zero."""

    name = "frozen"

    def __init__(self) -> None:
        self._zeros: dict[str, int] = {}
        """Zeros in a row, by signal; only signals that are at zero now."""

    def update(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings: list[Finding] = []
        signals = row.signals
        if 0.0 not in signals.values() and not self._zeros:
            return findings
        if signals.get(LR, 1.0) == 0.0 or signals.get(DISCARDED, 0.0) == 1.0:
            return findings
        for name, value in signals.items():
            if not _is_judged(name):
                continue
            if value != 0.0:
                self._zeros.pop(name, None)
                continue
            zeros = self._zeros[name] = self._zeros.get(name, 0) + 1
            if zeros == MIN_ZEROS:
                findings.append(_finding(name, row.step, row.tick))
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
        if not len(rows):
            return []
        known = self._zeros.pop(name, 0)
        zero = column.values[rows] == 0.0
        if not known and not zero.any():
            return []
        places, zeros = reached(zero, known, MIN_ZEROS)
        if zeros:
            self._zeros[name] = zeros
        return [
            _finding(name, int(block.step[row]), int(block.tick[row]))
            for row in rows[places].tolist()
        ]


def _is_judged(name: str) -> bool:
    return name == GRAD_NORM or name.startswith(_PREFIXES)


def _finding(name: str, step: int, tick: int) -> Finding:
    return Finding(
        detector=Frozen.name,
        symptom=Symptom.FROZEN,
        severity=Severity.ALARM,
        signal=name,
        step=step,
        tick=tick,
        value=0.0,
        facts={"records": float(MIN_ZEROS)},
    )
