"""History: what is remembered of a run while no incident is open.

An incident that opens is measured against it. While one is open nothing enters.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.events import NOT_APPLIED
from trimtab.core.signals import DISCARDED, EVAL_LOSS, GRAD_NORM, LOSS, LR, REWARD
from trimtab.core.state import Stateful
from trimtab.explain.verdict.rows import Row

NOT_APPLIED_RECORDS = 64
"""Records up to which the record of a step that was not applied comes after its event. Chosen: it
comes `live.lag_steps` later, 2 by default; a restart may repeat a step later."""

UNSEEN = "skipped by the user"
"""Why a step counts as not applied if no watched optimizer applied it (`live.ranks.exchange`)."""

FIRST_LOSSES = 5
"""Losses whose level is the start of the log."""

EVALUATIONS = 8
"""Held-out losses that are remembered."""

RESTART_RECORDS = 64
"""Records in which the loss must have fallen clearly for a restart to be recognised later."""

CLEAR_FALL = 0.8
"""A loss at this fraction of the first one has fallen clearly."""

LIKENESS = 0.1
"""The fraction by which losses of a restart may differ from those of the start. Chosen: the
restarts of a public run differ from its start by 1 to 2 %."""


class RunStart(Stateful):
    """The first losses of a run, and when they had fallen clearly."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.records = 0
        """Records from the first loss to the one that had fallen clearly; 0 if it did not."""
        self._num_seen = 0
        self._fallen = math.nan
        self._has_fallen = False
        """Whether the last loss had fallen clearly; two in a row have."""

    @property
    def is_known(self) -> bool:
        """Whether nothing more is to be learned."""
        has_fallen = self.records > 0 or self._num_seen > RESTART_RECORDS
        return has_fallen and len(self.losses) == FIRST_LOSSES

    @property
    def level(self) -> float | None:
        """The loss with which the log begins; None before the first one."""
        return float(np.median(self.losses)) if self.losses else None

    def observe(self, loss: float | None) -> None:
        """Add the next loss of the run."""
        if self.is_known or loss is None or not math.isfinite(loss):
            return
        has_fallen = bool(self.losses) and 0 < loss <= CLEAR_FALL * self.losses[0]
        if has_fallen and self._has_fallen and not self.records:
            self.records, self._fallen = self._num_seen, loss
        self._has_fallen = has_fallen
        if len(self.losses) < FIRST_LOSSES:
            self.losses.append(loss)
        self._num_seen += 1

    def is_repeated_by(self, losses: Sequence[float]) -> bool:
        """Return whether the losses from a peak on, one more than `records`, are like the first."""
        if not self.records or len(losses) <= self.records:
            return False
        return _is_like(losses[0], self.losses[0]) and _is_like(losses[self.records], self._fallen)


def _is_like(loss: float, known: float) -> bool:
    return abs(loss - known) <= LIKENESS * abs(known)


class History(Stateful):
    """The newest rows of a run, its start, its evaluations and its highest learning rate."""

    def __init__(self, max_rows: int) -> None:
        self.rows: deque[Any] = deque(maxlen=max_rows)
        self.start = RunStart()
        self.first_step: int | None = None
        self.first: tuple[int, int, float | None] | None = None
        """Tick, step and loss of the first row."""
        self.num_rows = 0
        """Rows that were remembered since then."""
        self.highest_lr = 0.0
        self.longest_return = 0
        """Records that the slowest spike so far took to come back."""
        self.last_end = -1
        """Tick at which the latest incident ended; -1 before the first one."""
        self.evaluations: deque[float] = deque(maxlen=EVALUATIONS)
        self._not_applied: list[tuple[int, int, bool]] = []
        """Tick and step of the latest steps that the loop itself did not apply, by their ticks, and
        whether that is known, and not only that no watched optimizer applied them."""
        self._skips_all = False
        """Whether no watched optimizer applied the newest step with a finite loss: another one may
        have applied them all."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rows = deque((Row(*row) for row in self.rows), self.rows.maxlen)

    def add_events(self, block: Block) -> None:
        """Note the steps that the loop did not apply, before their records."""
        new = [
            (event.tick, event.step, event.facts.get("why") != UNSEEN)
            for event in block.events
            if event.kind == NOT_APPLIED
        ]
        if len(block) and (new or self._not_applied):
            first = block.tick.item(0) - NOT_APPLIED_RECORDS
            self._not_applied = sorted(one for one in (*self._not_applied, *new) if one[0] > first)

    def add(self, block: Block, first: int, last: int) -> int:
        """Add quiet records; return how many of them have a loss or a reward."""
        if self.first_step is None:
            self.first_step = int(block.step[first])
        loss, reward, lr, evaluated = (
            block.column(name)[first:last] for name in (LOSS, REWARD, LR, EVAL_LOSS)
        )
        if not self.start.is_known:
            for value in loss.values[loss.finite].tolist():
                self.start.observe(value)
        is_counted = loss.present | reward.present
        rates = lr.values[lr.finite & is_counted]
        self.highest_lr = max(self.highest_lr, float(rates.max(initial=0.0)))
        self.evaluations.extend(evaluated.values[evaluated.present][-EVALUATIONS:].tolist())
        counting = first + np.flatnonzero(is_counted)
        newest = counting[-(self.rows.maxlen or 0) :].tolist()
        if self.first is None and len(counting):
            row = self.row(block, counting.item(0))
            self.first = row and row[:3]
        self.num_rows += len(counting)
        self.rows.extend(self.row(block, at) for at in newest)
        return len(counting)

    def note(self, block: Block, at: int) -> Row | None:
        """Return a record as a row, and note what it says of the whole run."""
        if self.first_step is None:
            self.first_step = block.step.item(at)
        row = self.row(block, at)
        if row is not None:
            self.start.observe(row.loss)
            if row.lr is not None and self.highest_lr < row.lr < math.inf:
                self.highest_lr = row.lr
        return row

    def row(self, block: Block, at: int) -> Row | None:
        """Return a record as a row; None if it has neither a loss nor a reward."""
        loss, reward = value_of(block, at, LOSS), value_of(block, at, REWARD)
        if loss is None and reward is None:
            return None
        tick, step = block.tick.item(at), block.step.item(at)
        is_known = self._was_not_applied(tick, step)
        if loss is not None and math.isfinite(loss):
            self._skips_all = is_known is False
        is_skipped = is_known or (is_known is False and not self._skips_all)
        kept_out = value_of(block, at, DISCARDED) == 1.0 or is_skipped
        lr, norm = value_of(block, at, LR), value_of(block, at, GRAD_NORM)
        return Row(tick, step, loss, lr, reward, kept_out, norm)

    def _was_not_applied(self, tick: int, step: int) -> bool | None:
        """Return whether it is known that a step was not applied; None if nothing says so."""
        if not self._not_applied:
            return None
        # By their ticks: a whole log may have many.
        first = bisect_left(self._not_applied, (tick - NOT_APPLIED_RECORDS + 1,))
        last = bisect_left(self._not_applied, (tick + 1,))
        near = self._not_applied[first:last]
        return next((is_known for _, not_applied, is_known in near if step == not_applied), None)


def value_of(block: Block, at: int, signal: str) -> float | None:
    """Return the value of a signal in a row; None if it was not recorded there."""
    column = block.columns.get(signal)
    return column.values.item(at) if column is not None and column.present.item(at) else None
