"""EarlierAttempt: the losses of the attempt before this one, by step, as a reference.

    attempt 0:   100 101 102 103 104 |killed
    attempt 1:               102 103 104 105 ...
                             '---------' seen before

Two batches are the same if their fingerprints are, or their data positions; where neither is known,
if their steps are.
"""

import math
from itertools import pairwise

import numpy as np

from trimtab.core.block import NO_POSITION, Block, FloatArray, IntArray, Record
from trimtab.core.signals import FINGERPRINT, LOSS
from trimtab.core.state import Stateful

STEPS_REMEMBERED = 2048
"""Steps of each attempt that are remembered: more are seldom repeated."""

Batch = tuple[float, float, int]
"""Loss, fingerprint (NaN if unknown) and data position."""


class EarlierAttempt(Stateful):
    """Remembers the finite losses of this attempt and of the one before."""

    def __init__(self) -> None:
        self._attempt = 0
        self._before: dict[int, Batch] = {}
        self._now: dict[int, Batch] = {}

    def update(self, record: Record) -> float:
        """The loss of the same batch in the attempt before; NaN if it is not known."""
        if record.attempt != self._attempt:
            self._start_attempt(record.attempt)
        loss = record.signals.get(LOSS, math.nan)
        if not math.isfinite(loss):
            return math.nan
        mark = record.signals.get(FINGERPRINT, math.nan)
        return self._look_up(record.step, (loss, mark, record.data_position))

    def update_many(self, block: Block) -> FloatArray:
        """The same for each of many records."""
        references = np.full(len(block), np.nan)
        loss, marks = block.column(LOSS), block.column(FINGERPRINT).values
        borders = [0, *(np.flatnonzero(np.diff(block.attempt)) + 1).tolist(), len(block)]
        for first, last in pairwise(borders):
            if first == last:
                continue
            self._start_attempt(int(block.attempt[first]))
            rows = first + np.flatnonzero(loss.finite[first:last])
            if self._all_new(block.step[rows]):
                # The others are not in the attempt before, and would be forgotten again.
                may_match = block.step[rows] <= max(self._before, default=-1)
                may_match[-STEPS_REMEMBERED:] = True
                rows = rows[may_match]
            for at in rows.tolist():
                batch = float(loss.values[at]), float(marks[at]), int(block.data_position[at])
                references[at] = self._look_up(int(block.step[at]), batch)
        return references

    def _start_attempt(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._before, self._now = self._now, {}

    def _look_up(self, step: int, batch: Batch) -> float:
        self._now.pop(step, None)  # the newest come last
        self._now[step] = batch
        if len(self._now) > STEPS_REMEMBERED:
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
