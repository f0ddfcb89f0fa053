"""TokenMix: data that has become another kind of text.

The share of distinct tokens in a batch does not depend on the model. When its means leave the range
that they had, the mix of sources has changed; announced changes are known and start anew.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import UNIQUE_TOKEN_SHARE
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.range_test import Outside, Span, Stray
from trimtab.detect.tools.rows import Row, Seen

CELL = 8
"""Records whose mean is taken."""

RANGE = Span(before=24, newest=6)
"""Outside at all is enough: in shuffled data that happens once in 2.4 million records by chance."""


class TokenMix:
    """One finding when the mix of tokens has moved."""

    name = "token-mix"
    hears = Known.CHANGED

    def __init__(self) -> None:
        self._outside = Outside(RANGE)
        self._count, self._total = 0, 0.0

    def hear(self, known: Known) -> None:
        """Another mix, or another batch, that somebody knows of."""
        self._outside.restart()
        self._count, self._total = 0, 0.0

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        value = row.signals.get(UNIQUE_TOKEN_SHARE)
        if value is None or not 0.0 <= value <= 1.0:
            return []
        self._count += 1
        self._total += value
        if self._count < CELL:
            return []
        stray = self._outside.take(self._total / CELL)
        self._count, self._total = 0, 0.0
        return [] if stray is None else [_finding(Seen(row.tick, row.step, value), stray)]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        return list(self._sweep(block))

    def state_dict(self) -> dict[str, Any]:
        """The cell that is being filled, and those before it."""
        return {"cell": [self._count, self._total], "outside": self._outside.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._count, self._total = state["cell"]
        self._outside.load_state_dict(state["outside"])

    def _sweep(self, block: Block) -> Iterator[Finding]:
        column = block.columns.get(UNIQUE_TOKEN_SHARE)
        if column is None:
            return
        with np.errstate(invalid="ignore"):
            good = column.present & (column.values >= 0) & (column.values <= 1)
        rows = np.flatnonzero(good)
        values = column.values[rows]
        ends = range(CELL - 1 - self._count, len(rows), CELL)
        cells = []
        begin = 0
        for end in ends:
            cells.append(sum(values[begin : end + 1].tolist(), self._total) / CELL)
            begin, self._count, self._total = end + 1, 0, 0.0
        self._count += len(rows) - begin
        self._total = sum(values[begin:].tolist(), self._total)
        for at, stray in self._outside.sweep(np.array(cells)):
            row = int(rows[ends[at]])
            yield _finding(Seen.at(block, row, column.values[row]), stray)


def _finding(seen: Seen, stray: Stray) -> Finding:
    return Finding(
        detector=TokenMix.name,
        symptom=Symptom.ODD_TOKENS,
        severity=Severity.ALARM,
        signal=UNIQUE_TOKEN_SHARE,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        false_per_10k=FALSE_PER_10K.get(TokenMix.name),
        facts={"mean": stray.value, "least_before": stray.low, "most_before": stray.high},
    )
