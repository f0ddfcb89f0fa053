"""SpanSums: how far the newest 3 to 24 cells lie above three times as many before them.

Sums over longer spans are made of two over half of it, so each costs one addition and rounds the
same way for one cell and for many.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from trimtab.core.block import FloatArray

SPANS = (3, 6, 12, 24)
"""Lengths of "now" in cells of 8 records: each twice the one before. 48 records also average out
the waves of one widely used data order, whose period they happen to be."""

REFERENCE = 3
"""What lies before is so many times longer. Source: 2 and 3 measured; 3 finds drifts sooner."""


class Rise(NamedTuple):
    """How far the mean of now lies above the mean of the reference."""

    height: float
    reference: float


class SpanSums:
    """Takes the means of cells and compares the newest with those before."""

    def __init__(self, means: Iterable[float] = ()) -> None:
        self._means: deque[float] = deque(maxlen=SPANS[0] - 1)
        self._past = [deque[float](maxlen=REFERENCE * span) for span in SPANS]
        """For each span, its sums that ended at the cells before this one."""
        for mean in means:
            self.add(mean)

    @property
    def is_full(self) -> bool:
        """Whether every span has its whole reference."""
        return len(self._past[-1]) == REFERENCE * SPANS[-1]

    def add(self, mean: float) -> list[Rise | None]:
        """Take the next cell; return the rise over each span, None while it is too early."""
        total: float | None = None
        if len(self._means) == SPANS[0] - 1:
            total = (mean + self._means[1]) + self._means[0]
        self._means.append(mean)
        rises: list[Rise | None] = []
        for span, past in zip(SPANS, self._past, strict=True):
            rise = None
            if total is not None and len(past) == REFERENCE * span:
                before = (past[2 * span] + past[span]) + past[0]
                reference = before / (REFERENCE * span)
                rise = Rise(total / span - reference, reference)
            rises.append(rise)
            if total is not None:
                doubled = total + past[-span] if len(past) >= span else None
                past.append(total)
                total = doubled
        return rises

    def sweep(self, means: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Take many cells when full; return heights and references, one row per span."""
        known = np.concatenate((self._means, means))
        total = (known[2:] + known[1:-1]) + known[:-2]
        self._means.extend(known[-len(self._means) :].tolist())
        heights, references = [], []
        for span, past in zip(SPANS, self._past, strict=True):
            known = np.concatenate((past, total))
            near, middle, far = (known[at * span :][: len(means)] for at in (2, 1, 0))
            reference = ((near + middle) + far) / (REFERENCE * span)
            heights.append(total / span - reference)
            references.append(reference)
            past.extend(known[-len(past) :].tolist())
            total = total + near
        return np.stack(heights), np.stack(references)

    def copy(self) -> "SpanSums":
        """Sums that go on from here on their own."""
        twin = SpanSums()
        twin._means, twin._past = self._means.copy(), [past.copy() for past in self._past]
        return twin

    def state_dict(self) -> dict[str, Any]:
        """All that the sums remember."""
        return {"means": list(self._means), "past": [list(past) for past in self._past]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the sums that `state_dict` described."""
        self.__init__()  # type: ignore[misc]
        self._means.extend(state["means"])
        for past, known in zip(self._past, state["past"], strict=True):
            past.extend(known)
