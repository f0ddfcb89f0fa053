"""Frozen: updates or gradients that are exactly zero while the learning rate is not.

A step that a loss scaler skips, or that was withheld on purpose, has a zero update as well, so some
in a row are needed. Groups are watched one by one: a frozen one hides among the others.
"""

from typing import Any

import numpy as np

from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import DISCARDED, GRAD_NORM, GRAD_NORM_OF, LR, UPDATE_NORM
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.rows import Row
from trimtab.detect.tools.streaks import reached

ZEROS = 16
"""Zeros in a row. Chosen: a scaler that finds its first scale skips up to a dozen steps."""

_PREFIXES = (UPDATE_NORM, GRAD_NORM_OF)


class Frozen:
    """One finding for each signal whose zeros go on."""

    name = "frozen"
    hears = Known.NOTHING

    def __init__(self) -> None:
        self._zeros: dict[str, int] = {}
        """How many zeros in a row each signal that is at zero has had."""

    def hear(self, known: Known) -> None:
        """No event excuses a model that does not learn."""

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings: list[Finding] = []
        signals = row.signals
        if 0.0 not in signals.values() and not self._zeros:
            return findings
        if signals.get(LR, 1.0) == 0.0 or signals.get(DISCARDED, 0.0) == 1.0:
            return findings
        for name, value in signals.items():
            if not _is_watched(name):
                continue
            if value != 0.0:
                self._zeros.pop(name, None)
                continue
            zeros = self._zeros[name] = self._zeros.get(name, 0) + 1
            if zeros == ZEROS:
                findings.append(_finding(name, row.step, row.tick))
        return findings

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        rate, withheld = block.column(LR), block.column(DISCARDED)
        counts = ~((rate.values == 0.0) & rate.present)
        counts &= ~((withheld.values == 1.0) & withheld.present)
        names = [name for name in block.columns if _is_watched(name)]
        return [finding for name in names for finding in self._sweep_one(block, name, counts)]

    def state_dict(self) -> dict[str, Any]:
        """How long each signal has been at zero."""
        return {"zeros": dict(self._zeros)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._zeros = dict(state["zeros"])

    def _sweep_one(self, block: Block, name: str, counts: BoolArray) -> list[Finding]:
        column = block.columns[name]
        rows = np.flatnonzero(column.present & counts)
        if not len(rows):
            return []
        known = self._zeros.pop(name, 0)
        zero = column.values[rows] == 0.0
        if not known and not zero.any():
            return []
        places, zeros = reached(zero, known, ZEROS)
        if zeros:
            self._zeros[name] = zeros
        return [
            _finding(name, int(block.step[row]), int(block.tick[row]))
            for row in rows[places].tolist()
        ]


def _is_watched(name: str) -> bool:
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
        false_per_10k=FALSE_PER_10K.get(Frozen.name),
        facts={"records": float(ZEROS)},
    )
