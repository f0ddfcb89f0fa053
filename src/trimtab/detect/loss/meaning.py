"""LossMeaning: whether the loss of this run measures its progress, by the record of the run itself.

    start o
           \\  levels: up to 16 means over equal parts of the run, by medians of 8 records
            o_
              o__o__o--o__o     fell: from the start to the lowest level
                                rose: all rises from level to level, added up

A loss that learning moves falls, and what it rises again is less. That of a policy or an adversary
goes up and down about as much, so its level says nothing about the model. Whether it is negative
decides nothing: likelihoods of densities and bounds on evidence are, and they fall.
"""

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.robust import median, medians
from trimtab.core.signals import LOSS, POLICY_SIGNALS
from trimtab.core.state import Stateful
from trimtab.detect.loss.domain import LARGEST, MAX_FIRST_STEP

RECORDS_PER_MEDIAN, MAX_LEVELS, MIN_MEDIANS = 8, 16, 16
"""Losses in a median, levels that are kept (then each two become one), and medians that are needed:
128 records. Source: losses of policies and adversaries may fall for the first hundred."""

RISES_COUNT = 2.0
"""Times the sum of all rises that a loss must have fallen. Chosen on the tuning half of
`scripts/bench judge`: kinds that learn reach 3.5 and mostly 30, adversaries stay under 2."""

UNKNOWN, FALLS, WANDERS = 0, 1, 2


class LossMeaning(Stateful):
    """What is known about the loss of a run, by the tick since which it is known."""

    not_saved = ("_objective",)

    def __init__(self, objective: str) -> None:
        """Create it; `objective` is what the user says: auto, measure or surrogate."""
        self._objective = objective
        self._policy_since: int | None = None
        self._negative_since: int | None = None
        """The ticks of the first record with a policy's signal, and with a negative loss."""
        self._start: float | None = None
        self._start_since = 0
        self._shows_start = False
        self._group: list[float] = []
        self._total, self._count, self._per_level = 0.0, 0, 1
        """Of the medians of the next level, and how many make one."""
        self._levels: list[float] = []
        self._ticks, self._known = [-1], [UNKNOWN]
        """What the levels show, and since when."""

    def is_surrogate(self, tick: int) -> bool:
        """Return whether the loss was known at a record to be of a policy or an adversary."""
        if self._objective != "auto":
            return self._objective == "surrogate"
        if self._policy_since is not None and tick >= self._policy_since:
            return True
        is_negative = self._negative_since is not None and tick >= self._negative_since
        return is_negative and self._at(tick) != FALLS

    def has_direction(self, tick: int) -> bool | None:
        """Return whether the loss was known at a record to measure progress; None if too few losses
        were there to say."""
        if self._objective != "auto":
            return self._objective == "measure"
        if self.is_surrogate(tick):
            return False
        return {FALLS: True, WANDERS: False}.get(self._at(tick))

    def start(self, tick: int) -> float | None:
        """Return the loss at the start of the run, as known at a record; None if the log begins
        later."""
        return self._start if self._shows_start and tick >= self._start_since else None

    def observe(self, record: Record) -> None:
        if self._objective == "auto":
            is_of_policy = not POLICY_SIGNALS.isdisjoint(record.signals)
            self._observe(record.signals.get(LOSS), record.tick, record.step, is_of_policy)

    def observe_many(self, block: Block) -> None:
        if self._objective != "auto" or not len(block):
            return
        if len(block) == 1:  # a live step
            columns = block.columns
            known = [name for name in (LOSS, *(POLICY_SIGNALS & columns.keys())) if name in columns]
            row = {name: columns[name].values.item(0) for name in known if columns[name].present[0]}
            is_of_policy = not POLICY_SIGNALS.isdisjoint(row)
            self._observe(row.get(LOSS), block.tick.item(0), block.step.item(0), is_of_policy)
            return
        if self._policy_since is None:
            shows = np.zeros(len(block), dtype=np.bool_)
            for name in POLICY_SIGNALS & block.columns.keys():
                shows |= block.columns[name].present
            if shows.any():
                self._policy_since = int(block.tick[int(np.argmax(shows))])
        column = block.column(LOSS)
        rows = np.flatnonzero(column.finite)
        if not len(rows):
            return
        losses, ticks = column.values[rows], block.tick[rows]
        if self._negative_since is None and (losses < 0).any():
            self._negative_since = int(ticks[int(np.argmax(losses < 0))])
        if self._start is None and not self._group:
            self._shows_start = bool(block.step[rows[0]] <= MAX_FIRST_STEP)
        before = len(self._group)
        losses = np.concatenate((self._group, np.clip(losses, -LARGEST, LARGEST)))
        whole = len(losses) - len(losses) % RECORDS_PER_MEDIAN
        self._group = losses[whole:].tolist()
        groups = medians(losses[:whole].reshape(-1, RECORDS_PER_MEDIAN)).tolist()
        last = range(RECORDS_PER_MEDIAN - 1 - before, len(rows), RECORDS_PER_MEDIAN)
        for value, at in zip(groups, last, strict=True):
            self._add(value, int(ticks[at]))

    def _observe(self, loss: float | None, tick: int, step: int, is_of_policy: bool) -> None:
        if is_of_policy and self._policy_since is None:
            self._policy_since = tick
        if loss is None or not -np.inf < loss < np.inf:
            return
        if loss < 0 and self._negative_since is None:
            self._negative_since = tick
        if self._start is None and not self._group:
            self._shows_start = step <= MAX_FIRST_STEP
        self._group.append(min(max(loss, -LARGEST), LARGEST))
        if len(self._group) == RECORDS_PER_MEDIAN:
            value, self._group = median(self._group), []
            self._add(value, tick)

    def _at(self, tick: int) -> int:
        return self._known[bisect_right(self._ticks, tick) - 1]

    def _add(self, value: float, tick: int) -> None:
        """Add a median; where it completes a level, see what the levels show."""
        if self._start is None:
            self._start, self._start_since = value, tick
        self._total, self._count = self._total + value, self._count + 1
        if self._count < self._per_level:
            return
        self._levels.append(self._total / self._count)
        self._total, self._count = 0.0, 0
        known = self._judge(self._start)
        if known != self._known[-1]:
            self._ticks.append(tick)
            self._known.append(known)
        if len(self._levels) == MAX_LEVELS:
            self._levels = [0.5 * (a + b) for a, b in zip(*[iter(self._levels)] * 2, strict=True)]
            self._per_level *= 2

    def _judge(self, start: float) -> int:
        levels = self._levels
        if len(levels) * self._per_level < MIN_MEDIANS:
            return UNKNOWN
        fell = start - min(levels)
        rose = sum(max(after - before, 0.0) for before, after in pairwise(levels))
        if fell > RISES_COUNT * rose:
            return FALLS
        # A log that begins later does not show what fell before.
        return WANDERS if self._shows_start else FALLS
