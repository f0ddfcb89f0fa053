"""Frozen: updates or gradients that are exactly zero while the learning rate is not.

A step that a loss scaler skips, or that was discarded on purpose, has a zero update as well, so
zeros are needed over several steps. Groups are judged one by one: in the global norm a frozen one
is hidden by the others.
"""

import numpy as np

from trimtab.core.block import Block, IntArray, Record
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
        signals = record.signals
        if 0.0 not in signals.values() and not self._zeros:
            return []
        if signals.get(LR, 1.0) == 0.0 or signals.get(DISCARDED, 0.0) == 1.0:
            return []
        findings = []
        for name, value in signals.items():
            if _is_judged(name) and self._is_frozen(name, value, record.tick):
                facts = {"records": float(self._zeros[name])}
                findings.append(
                    self.finding(
                        record, Symptom.FROZEN, Severity.ALARM, name, value=0.0, facts=facts
                    )
                )
        return findings

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows in which a norm is recorded, from the first zero on."""
        columns = [column for name, column in block.columns.items() if _is_judged(name)]
        is_relevant = np.zeros(len(block), dtype=np.bool_)
        is_zero = np.zeros(len(block), dtype=np.bool_)
        for column in columns:
            is_relevant |= column.present
            is_zero |= column.present & (column.values == 0.0)
        rows = np.flatnonzero(is_relevant)
        if self._zeros:
            return rows
        return rows[rows >= np.argmax(is_zero)] if is_zero.any() else rows[:0]

    def _is_frozen(self, name: str, value: float, tick: int) -> bool:
        """Return whether a signal has been at zero for long enough, once for each stretch."""
        if value != 0.0:
            self._zeros.pop(name, None)
            self._since.pop(name, None)
            self._reported.pop(name, None)
            return False
        if name in self._reported:
            return False
        zeros = self._zeros[name] = self._zeros.get(name, 0) + 1
        ticks = tick - self._since.setdefault(name, tick) + 1
        if zeros < MIN_ZEROS or ticks < MIN_TICKS:
            return False
        self._reported[name] = True
        return True


def _is_judged(name: str) -> bool:
    return name == GRAD_NORM or name.startswith(_PREFIXES)
