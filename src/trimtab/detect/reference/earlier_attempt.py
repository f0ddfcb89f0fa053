"""The losses of the attempt before this one, by step: a run's own reference after a restart.

    attempt 0:   100 101 102 103 104 |killed
    attempt 1:               102 103 104 105 ...
                             '---------' seen before

A batch is taken for the same if its fingerprint is, or its data position; where neither is known,
if its step is.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np

from trimtab.core.block import NO_POSITION, Block, FloatArray, IntArray
from trimtab.core.signals import FINGERPRINT, LOSS
from trimtab.detect.tools.rows import Row

MEMORY = 2048
"""Steps that are remembered of each attempt: more are seldom done again."""

Batch = tuple[float, float, int]
"""Loss, fingerprint (NaN if unknown) and data position."""


class EarlierAttempt:
    """Remembers the finite losses of this attempt and of the one before."""

    def __init__(self) -> None:
        self._attempt = 0
        self._before: dict[int, Batch] = {}
        self._now: dict[int, Batch] = {}

    def take(self, row: Row) -> float:
        """The loss of the same batch in the attempt before; NaN if there is none."""
        if row.attempt != self._attempt:
            self._turn_to(row.attempt)
        loss = row.signals.get(LOSS, math.nan)
        if not math.isfinite(loss):
            return math.nan
        mark = row.signals.get(FINGERPRINT, math.nan)
        return self._meet(row.step, (loss, mark, row.data_position))

    def sweep(self, block: Block) -> FloatArray:
        """The same for each of many records."""
        references = np.full(len(block), np.nan)
        loss, marks = block.column(LOSS), block.column(FINGERPRINT).values
        borders = [0, *(np.flatnonzero(np.diff(block.attempt)) + 1).tolist(), len(block)]
        for first, last in pairwise(borders):
            if first == last:
                continue
            self._turn_to(int(block.attempt[first]))
            rows = first + np.flatnonzero(loss.finite[first:last])
            if self._all_new(block.step[rows]):
                # The others have not been met before, and would be forgotten again.
                may_meet = block.step[rows] <= max(self._before, default=-1)
                may_meet[-MEMORY:] = True
                rows = rows[may_meet]
            for at in rows.tolist():
                batch = float(loss.values[at]), float(marks[at]), int(block.data_position[at])
                references[at] = self._meet(int(block.step[at]), batch)
        return references

    def state_dict(self) -> dict[str, Any]:
        """The losses of both attempts."""
        return {
            "attempt": self._attempt,
            "before": [[step, *batch] for step, batch in self._before.items()],
            "now": [[step, *batch] for step, batch in self._now.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the memory that `state_dict` described."""
        self._attempt = int(state["attempt"])
        self._before = {step: (*batch,) for step, *batch in state["before"]}
        self._now = {step: (*batch,) for step, *batch in state["now"]}

    def _turn_to(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._before, self._now = self._now, {}

    def _meet(self, step: int, batch: Batch) -> float:
        self._now.pop(step, None)  # the newest stand last
        self._now[step] = batch
        if len(self._now) > MEMORY:
            del self._now[next(iter(self._now))]
        known = self._before.get(step)
        return known[0] if known is not None and _is_same(known, batch) else math.nan

    def _all_new(self, steps: IntArray) -> bool:
        if not len(steps):
            return True
        rises = bool((np.diff(steps) > 0).all())
        return rises and (not self._now or int(steps[0]) > max(self._now))


def _is_same(one: Batch, other: Batch) -> bool:
    _, mark, position = one
    _, other_mark, other_position = other
    if mark == mark and other_mark == other_mark:
        return mark == other_mark
    if NO_POSITION in (position, other_position):
        return True
    return position == other_position
