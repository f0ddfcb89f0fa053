"""Outside: whether the newest cells all lie outside the range of the cells before them.

    high  - - - - - - - - - - - - - - - - -   . . .   newest: all of them outside, and far enough
          . '  .   ' . .  '  .  ' .  .  '
    low   - - - - - - - - - - - - - - - - -

A cell is one number made of some records. The test knows only the order of numbers: no noise is
estimated, and for cells that do not depend on each other chance can be counted. All of 6 newest
outside of 24 before them happens once in 300,000 looks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import BoolArray, FloatArray

_AT_ONCE = 1024
"""Cells that are judged in one go: what is told wastes those after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """How many cells are compared, and how far outside is far enough."""

    before: int
    newest: int
    widths: float = 0.0
    """Distance from the range, in widths of the range."""
    times: float = 1.0
    """Times the upper end of the range; for what is never negative."""
    downwards: bool = True
    """Whether below counts as well."""


class Stray(NamedTuple):
    """Newest cells that were all outside."""

    value: float
    """The last of them."""
    low: float
    high: float


class Outside:
    """Takes cells; after a stray it starts anew, so that the new range becomes the normal."""

    __slots__ = ("_cells", "_need", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._need = span.before + span.newest
        self._cells: list[float] = []

    def restart(self) -> None:
        """Forget the past: what comes now is not comparable."""
        self._cells = []

    def take(self, cell: float) -> Stray | None:
        """Judge the next cell."""
        cells = self._cells
        cells.append(cell)
        if len(cells) < self._need:
            return None
        span = self._span
        old, new = cells[: span.before], cells[span.before :]
        low, high = min(old), max(old)
        room = span.widths * (high - low)
        above = min(new) > max(high + room, high * span.times)
        if high > low and (above or (span.downwards and max(new) < low - room)):
            self._cells = []
            return Stray(cell, low, high)
        del cells[0]
        return None

    def sweep(self, cells: FloatArray) -> Iterator[tuple[int, Stray]]:
        """Judge the next cells, as `take` would one after the other; say which are strays."""
        at = 0
        while at < len(cells):
            part = cells[at : at + _AT_ONCE]
            known = np.concatenate((self._cells, part))
            if len(known) < self._need:
                self._cells = known.tolist()
                return
            if self._cannot_stray(known):
                self._cells = known[1 - self._need :].tolist()
                at += len(part)
                continue
            windows = sliding_window_view(known, self._need)
            low = windows[:, : self._span.before].min(axis=1)
            high = windows[:, : self._span.before].max(axis=1)
            strays = np.flatnonzero(self._is_outside(windows, low, high))
            if not len(strays):
                self._cells = known[1 - self._need :].tolist()
                at += len(part)
                continue
            first = int(strays[0])
            place = first + self._need - 1 - len(self._cells)
            self._cells = []
            yield at + place, Stray(float(part[place]), float(low[first]), float(high[first]))
            at += place + 1

    def state_dict(self) -> dict[str, Any]:
        """The cells that are remembered."""
        return {"cells": list(self._cells)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the test that `state_dict` described."""
        self._cells = list(state["cells"])

    def _cannot_stray(self, known: FloatArray) -> bool:
        """Whether all cells are so close together that none of them can be outside."""
        span = self._span
        return not span.downwards and bool(known.max() <= known.min() * span.times)

    def _is_outside(self, windows: FloatArray, low: FloatArray, high: FloatArray) -> BoolArray:
        span = self._span
        newest = windows[:, span.before :]
        room = span.widths * (high - low)
        outside = newest.min(axis=1) > np.maximum(high + room, high * span.times)
        if span.downwards:
            outside |= newest.max(axis=1) < low - room
        return np.asarray(outside & (high > low))
