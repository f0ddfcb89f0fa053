"""Occurrences of each token."""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.corpus.options import MAX_VOCABULARY

Tokens = NDArray[np.integer]
Counts = NDArray[np.int64]

CHUNK = 2**18
"""Tokens that are counted at once. `np.bincount` needs them as int64, which should fit into the
cache: 1.2 times as fast as with 2**22 (2 MB of L2 cache per core)."""

PIECE = 2**15
"""Tokens that are checked and copied at once, while they are in the cache."""


class TokenCounter:
    """Counts tokens; an id at or above the limit is counted as out of range.

    Tokens are collected in one int64 buffer and counted when it is full, so that `np.bincount`
    neither makes a copy of its own nor is called for a few tokens.
    """

    def __init__(self, limit: int = MAX_VOCABULARY) -> None:
        self.limit = limit
        self.out_of_range = 0
        self._counts: Counts = np.zeros(0, dtype=np.int64)
        self._buffer: NDArray[np.int64] = np.empty(CHUNK, dtype=np.int64)
        self._waiting = 0
        """Tokens in the buffer that are not counted yet."""

    @property
    def counts(self) -> Counts:
        """Occurrences of each token."""
        self._count()
        return self._counts

    def update(self, tokens: Tokens) -> None:
        """Count these tokens."""
        # All ids of a narrow type may fit; then nothing needs to be looked at.
        lowest, highest = _range(tokens.dtype)
        can_be_high, can_be_negative = highest >= self.limit, lowest < 0
        for start in range(0, len(tokens), PIECE):
            piece = tokens[start : start + PIECE]
            is_high = can_be_high and np.maximum.reduce(piece) >= self.limit
            if is_high or (can_be_negative and piece.min() < 0):
                is_valid = (piece >= 0) & (piece < self.limit)
                self.out_of_range += int(np.count_nonzero(~is_valid))
                piece = piece[is_valid]
            if self._waiting + len(piece) > CHUNK:
                self._count()
            self._buffer[self._waiting : self._waiting + len(piece)] = piece
            self._waiting += len(piece)

    def _count(self) -> None:
        # At least as long as the counts are: they can be added without a copy.
        waiting = self._buffer[: self._waiting]
        counts = np.bincount(waiting, minlength=len(self._counts))
        if len(counts) > len(self._counts):
            counts[: len(self._counts)] += self._counts
            self._counts = counts
        else:
            self._counts += counts
        self._waiting = 0


@functools.cache
def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The lowest and the highest number of an integer type."""
    kind = np.iinfo(dtype)
    return int(kind.min), int(kind.max)


def add_counts(one: Counts, other: Counts) -> Counts:
    """The sum of counts that may have different lengths."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    total = long.copy()
    total[: len(short)] += short
    return total


def trim(counts: Counts) -> Counts:
    """Counts without the zeros at the end, so that they do not depend on how they were made."""
    used = np.flatnonzero(counts)
    return counts[: used[-1] + 1] if len(used) else counts[:0]
