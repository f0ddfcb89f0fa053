"""History: the last records that were judged, to judge up to an earlier one of them again.

    state --> block --> block --> block, state --> block --> ...

A state of the judge is kept every few hundred records, and the records since. What the judge was
before a certain step is the last state before it and the records in between: how a run is cut into
blocks never changes the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.block import Block

State = dict[str, Any]

MARK_RECORDS = 256
"""Records from one kept state to the next: a state takes some milliseconds to make."""


@dataclass(slots=True)
class Piece:
    """Records that were judged together."""

    block: Block
    num_incidents: int
    """How many incidents there had been before."""
    state: State | None
    """What the judge was before, if that is kept here."""


class History:
    """The last `depth` records at least, and states from which they can be judged again."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._pieces: list[Piece] = []
        self._since_mark = 0
        self._is_whole = True
        """Whether nothing was dropped yet."""

    def add(self, block: Block, num_incidents: int, make_state: Callable[[], State]) -> None:
        """Add records that are about to be judged."""
        state = None
        if not self._pieces or self._since_mark >= MARK_RECORDS:
            state, self._since_mark = make_state(), 0
        self._since_mark += len(block)
        self._pieces.append(Piece(block, num_incidents, state))
        self._forget()

    def return_to(self, step: int) -> list[Piece] | None:
        """Return the records before a step, the first with its state, and forget all later ones.

        None if the history does not reach back to it.
        """
        kept = list(self._pieces)
        while kept and not (kept[-1].block.step < step).any():
            kept.pop()
        if not kept:
            first = self._pieces[0] if self._pieces else None
            if first is None or not (self._is_whole or step in first.block.step[:1]):
                return None
            kept.append(Piece(first.block[:0], first.num_incidents, first.state))
        last = kept[-1]
        rows = np.flatnonzero(last.block.step < step)
        end = int(rows[-1]) + 1 if len(rows) else 0
        if end < len(last.block):
            kept[-1] = Piece(last.block[:end], last.num_incidents, last.state)
        self._pieces = kept
        mark = max(at for at, piece in enumerate(kept) if piece.state is not None)
        self._since_mark = sum(len(piece.block) for piece in kept[mark:])
        return kept[mark:]

    def _forget(self) -> None:
        """Drop what is older than `depth`, up to a state."""
        marks = [at for at, piece in enumerate(self._pieces) if piece.state is not None]
        for mark in reversed(marks[1:]):
            if sum(len(piece.block) for piece in self._pieces[mark:]) >= self.depth:
                del self._pieces[:mark]
                self._is_whole = False
                return
