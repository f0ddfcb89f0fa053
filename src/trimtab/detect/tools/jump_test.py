"""Leap: a change from one record to the next that dwarfs all changes of the recent past.

    changes:   . : . , : . ; . : .  ...  . : , .  |        times the largest of the last 128
               [ --- 8 cells of 16 changes --- ][ this cell ]   = how far it leapt

What a signal's own largest change is, is all that has to be known of its noise: no distribution is
assumed, and a heavy tail raises the bar by itself. A leap enters the past as no more than what was
allowed: it is told once, its new value is the normal from then on, and it does not hide the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import BoolArray, FloatArray, IntArray

CELL, CELLS = 16, 8
"""Changes in a cell, and cells that are remembered. Source: measured in the lab; a memory of 128
changes keeps what healthy runs reach under 3 times the record, half of it does not."""

FEWEST_CELLS = 4
"""Cells that must be known before anything is judged."""

_AT_ONCE = 8192
"""Values that are judged in one go: they stay in the processor's cache."""

_LARGEST = 1e12
"""Relative changes beyond this count as this: a limit must stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far is too far."""

    up: float | None
    """Times the largest recent change; none where a rise means nothing."""
    down: float | None
    """The same for a fall."""
    floor: float
    """Relative change under which nothing is a leap, however calm the signal is."""


class Jump(NamedTuple):
    """One leap: how large the change was, and how large the largest before it."""

    change: float
    """Relative to the smaller of the two values; negative where the signal fell."""
    record: float


class Leap:
    """Watches the positive, finite values of one signal."""

    __slots__ = ("_gap", "_highest", "_in_cell", "_last", "_reach", "_step", "_top", "_tops")

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._tops: list[float] = []
        """The largest change of each remembered cell, and of all of them."""
        self._highest = 0.0
        self.restart()

    def restart(self) -> None:
        """Forget the past: what comes now is not comparable."""
        self._last, self._step, self._gap = 0.0, 0, 0
        self._in_cell, self._top = 0, 0.0
        self._tops, self._highest = [], 0.0

    def cut(self) -> None:
        """The next value does not follow from the last, but will be as noisy as those before."""
        self._last = 0.0

    def take(self, value: float, step: int) -> Jump | None:
        """Judge the next value."""
        last, gap, usual = self._last, step - self._step, self._gap
        self._last, self._step, self._gap = value, step, gap
        # Over more steps than usual a signal may move further than usual.
        if not last or not 0 < gap <= usual:
            return None
        if value >= last:
            return self._judge(min(value / last - 1.0, _LARGEST))
        return self._judge(max(1.0 - last / value, -_LARGEST))

    def sweep(self, values: FloatArray, steps: IntArray) -> Iterator[tuple[int, Jump]]:
        """Judge the next values, as `take` would one after the other; say which leapt."""
        for begin in range(0, len(values), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            for at, jump in self._sweep_part(values[part], steps[part]):
                yield begin + at, jump

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "last": [self._last, self._step, self._gap],
            "cell": [self._in_cell, self._top],
            "tops": list(self._tops),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the watch that `state_dict` described."""
        self._last, self._step, self._gap = state["last"]
        self._in_cell, self._top = state["cell"]
        self._tops = list(state["tops"])
        self._highest = max(self._tops, default=0.0)

    def _judge(self, change: float) -> Jump | None:
        """One change: whether it is a leap; then it is part of the past."""
        jump = None
        size = abs(change)
        if size > self._top:
            times = self._reach.up if change > 0 else self._reach.down
            if times is not None and len(self._tops) >= FEWEST_CELLS:
                record = max(self._highest, self._top)
                limit = max(record * times, self._reach.floor)
                if size > limit:
                    jump = Jump(change, record)
                    size = limit
            self._top = size
        self._in_cell += 1
        if self._in_cell == CELL:
            self._tops = [*self._tops[1 - CELLS :], self._top]
            self._highest = max(self._tops)
            self._in_cell, self._top = 0, 0.0
        return jump

    def _sweep_part(self, values: FloatArray, steps: IntArray) -> Iterator[tuple[int, Jump]]:
        last = np.concatenate(([self._last], values[:-1]))
        gaps = np.diff(np.concatenate(([self._step], steps)))
        usual = np.concatenate(([self._gap], gaps[:-1]))
        comparable = (gaps > 0) & (gaps <= usual)
        comparable[0] &= self._last != 0
        self._last, self._step, self._gap = float(values[-1]), int(steps[-1]), int(gaps[-1])
        judged = None if comparable.all() else np.flatnonzero(comparable)
        if judged is not None:
            values, last = values[judged], last[judged]
        with np.errstate(over="ignore"):
            rise = values / last - 1.0
            changes = np.where(rise >= 0, rise, 1.0 - last / values)
        changes = np.clip(changes, -_LARGEST, _LARGEST)
        at = 0
        while at < len(changes):
            done = self._sweep_calm(changes[at:])
            if not done:  # a cell is half done, the memory is filling, or there is a leap
                done = min(CELL - self._in_cell, len(changes) - at)
                for place in range(at, at + done):
                    jump = self._judge(float(changes[place]))
                    if jump is not None:
                        yield place if judged is None else int(judged[place]), jump
            at += done

    def _sweep_calm(self, changes: FloatArray) -> int:
        """Take the whole cells before the first that has a leap; say how many changes."""
        cells = len(changes) // CELL
        if not cells or self._in_cell or len(self._tops) < CELLS:
            return 0
        part = changes[: cells * CELL].reshape(cells, CELL)
        rises, falls = part.max(axis=1), 0.0 - part.min(axis=1)  # never -0.0, as a float has it
        tops = np.concatenate((self._tops, np.maximum(rises, falls)))
        highest = sliding_window_view(tops, CELLS)[:-1].max(axis=1)
        leaps = self._leaps(rises, falls, highest)
        if leaps.any():
            cells = int(np.argmax(leaps))
            if not cells:
                return 0
        self._tops = tops[cells : cells + CELLS].tolist()
        self._highest = max(self._tops)
        return cells * CELL

    def _leaps(self, rises: FloatArray, falls: FloatArray, highest: FloatArray) -> BoolArray:
        """Which cells might have a leap: the record within the cell is left out of account."""
        reach = self._reach
        ups, downs = (
            np.full(len(highest), np.inf)
            if times is None
            else np.maximum(highest * times, reach.floor)
            for times in (reach.up, reach.down)
        )
        return np.asarray((rises > ups) | (falls > downs))
