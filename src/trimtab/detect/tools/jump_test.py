"""JumpTest: a change from one record to the next that is far larger than all recent changes.

    changes:   . : . , : . ; . : .  ...  . : , .  |        compared with the largest of the last 128
               [ --- 8 cells of 16 changes --- ][ this cell ]

The test knows nothing of a signal's noise but its largest recent change: it assumes no
distribution, and a heavy tail raises the limit by itself. A jump enters the past only as large as
the limit, so it is reported once, its new value is normal from then on, and it does not hide the
next one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import BoolArray, FloatArray, IntArray
from trimtab.core.state import Stateful

CHANGES_PER_CELL, CELLS_REMEMBERED = 16, 8
"""Changes in a cell, and cells that are remembered. Source: measured in the lab; a memory of 128
changes keeps healthy runs under 3 times the largest change, half of it does not."""

MIN_CELLS = 4
"""Cells that must be known before anything is judged."""

_VALUES_AT_ONCE = 8192
"""Values that are judged at once: they stay in the processor's cache."""

_MAX_CHANGE = 1e12
"""Relative changes beyond this count as this: a limit must stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpLimits:
    """How far is too far."""

    up: float | None
    """Times the largest recent change; None where a rise means nothing."""
    down: float | None
    """The same for a fall."""
    floor: float
    """Relative change under which nothing is a jump, however calm the signal is."""


class Jump(NamedTuple):
    """How large a change was, and how large the largest before it."""

    change: float
    """Relative to the smaller of the two values; negative where the signal fell."""
    largest_before: float


class JumpTest(Stateful):
    """Judges the positive, finite values of one signal."""

    __slots__ = ("_gap", "_highest", "_in_cell", "_last", "_limits", "_step", "_top", "_tops")
    not_saved = ("_limits",)

    def __init__(self, limits: JumpLimits) -> None:
        self._limits = limits
        self._tops: list[float] = []
        """The largest change of each remembered cell, and of all of them."""
        self._highest = 0.0
        self.restart()

    def restart(self) -> None:
        """Forget the past: what comes now is not comparable."""
        self._last, self._step, self._gap = 0.0, 0, 0
        self._in_cell, self._top = 0, 0.0
        self._tops, self._highest = [], 0.0

    def skip_next(self) -> None:
        """Do not compare the next value with the last; its noise is the same as before."""
        self._last = 0.0

    def update(self, value: float, step: int) -> Jump | None:
        """Judge the next value."""
        last, gap, last_gap = self._last, step - self._step, self._gap
        self._last, self._step, self._gap = value, step, gap
        # Over more steps than usual a signal may move further than usual.
        if not last or not 0 < gap <= last_gap:
            return None
        if value >= last:
            return self._judge(min(value / last - 1.0, _MAX_CHANGE))
        return self._judge(max(1.0 - last / value, -_MAX_CHANGE))

    def update_many(self, values: FloatArray, steps: IntArray) -> Iterator[tuple[int, Jump]]:
        """Judge the next values, as `update` would one by one; yield where a signal jumped."""
        for begin in range(0, len(values), _VALUES_AT_ONCE):
            part = slice(begin, begin + _VALUES_AT_ONCE)
            for at, jump in self._judge_part(values[part], steps[part]):
                yield begin + at, jump

    def _judge(self, change: float) -> Jump | None:
        """Judge one change, then make it part of the past."""
        jump = None
        size = abs(change)
        if size > self._top:
            times = self._limits.up if change > 0 else self._limits.down
            if times is not None and len(self._tops) >= MIN_CELLS:
                largest = max(self._highest, self._top)
                limit = max(largest * times, self._limits.floor)
                if size > limit:
                    jump = Jump(change, largest)
                    size = limit
            self._top = size
        self._in_cell += 1
        if self._in_cell == CHANGES_PER_CELL:
            self._tops = [*self._tops[1 - CELLS_REMEMBERED :], self._top]
            self._highest = max(self._tops)
            self._in_cell, self._top = 0, 0.0
        return jump

    def _judge_part(self, values: FloatArray, steps: IntArray) -> Iterator[tuple[int, Jump]]:
        last = np.concatenate(([self._last], values[:-1]))
        gaps = np.diff(np.concatenate(([self._step], steps)))
        last_gap = np.concatenate(([self._gap], gaps[:-1]))
        comparable = (gaps > 0) & (gaps <= last_gap)
        comparable[0] &= self._last != 0
        self._last, self._step, self._gap = float(values[-1]), int(steps[-1]), int(gaps[-1])
        judged = None if comparable.all() else np.flatnonzero(comparable)
        if judged is not None:
            values, last = values[judged], last[judged]
        with np.errstate(over="ignore"):
            rise = values / last - 1.0
            changes = np.where(rise >= 0, rise, 1.0 - last / values)
        changes = np.clip(changes, -_MAX_CHANGE, _MAX_CHANGE)
        at = 0
        while at < len(changes):
            done = self._pass_calm_cells(changes[at:])
            if not done:  # a cell is half full, the memory is filling, or there is a jump
                done = min(CHANGES_PER_CELL - self._in_cell, len(changes) - at)
                for place in range(at, at + done):
                    jump = self._judge(float(changes[place]))
                    if jump is not None:
                        yield place if judged is None else int(judged[place]), jump
            at += done

    def _pass_calm_cells(self, changes: FloatArray) -> int:
        """Pass the whole cells before the first that may have a jump; return how many changes."""
        cells = len(changes) // CHANGES_PER_CELL
        if not cells or self._in_cell or len(self._tops) < CELLS_REMEMBERED:
            return 0
        part = changes[: cells * CHANGES_PER_CELL].reshape(cells, CHANGES_PER_CELL)
        rises, falls = part.max(axis=1), 0.0 - part.min(axis=1)  # never -0.0
        tops = np.concatenate((self._tops, np.maximum(rises, falls)))
        highest = sliding_window_view(tops, CELLS_REMEMBERED)[:-1].max(axis=1)
        may_jump = self._may_jump(rises, falls, highest)
        if may_jump.any():
            cells = int(np.argmax(may_jump))
            if not cells:
                return 0
        self._tops = tops[cells : cells + CELLS_REMEMBERED].tolist()
        self._highest = max(self._tops)
        return cells * CHANGES_PER_CELL

    def _may_jump(self, rises: FloatArray, falls: FloatArray, highest: FloatArray) -> BoolArray:
        """Which cells may have a jump: the changes within the cell itself are not looked at."""
        limits = self._limits
        ups, downs = (
            np.full(len(highest), np.inf)
            if times is None
            else np.maximum(highest * times, limits.floor)
            for times in (limits.up, limits.down)
        )
        return np.asarray((rises > ups) | (falls > downs))
