"""Occurrences of each token."""

import numpy as np
from numpy.typing import NDArray

from trimtab.corpus.options import MAX_VOCABULARY

Tokens = NDArray[np.integer]
Counts = NDArray[np.int64]

CHUNK = 2**18
"""Tokens that are counted at once. `np.bincount` makes an int64 copy, which should fit into the
cache: 1.2 times as fast as with 2**22 (2 MB of L2 cache per core)."""


class TokenCounter:
    """Counts tokens; an id at or above the limit is counted as out of range."""

    def __init__(self, limit: int = MAX_VOCABULARY) -> None:
        self.limit = limit
        self.counts: Counts = np.zeros(0, dtype=np.int64)
        self.out_of_range = 0

    def update(self, tokens: Tokens) -> None:
        """Count these tokens."""
        for start in range(0, len(tokens), CHUNK):
            self._count(tokens[start : start + CHUNK])

    def _count(self, tokens: Tokens) -> None:
        # All ids of a narrow type may fit; then nothing needs to be looked at.
        kind = np.iinfo(tokens.dtype)
        is_high = kind.max >= self.limit and tokens.max() >= self.limit
        if is_high or (kind.min < 0 and tokens.min() < 0):
            is_valid = (tokens >= 0) & (tokens < self.limit)
            self.out_of_range += int(np.count_nonzero(~is_valid))
            tokens = tokens[is_valid]
        if tokens.dtype == np.uint64:
            tokens = tokens.astype(np.int64)
        # As long as the counts are: they can be added without a copy.
        size = 2**16 if tokens.dtype == np.uint16 else 0
        counts = np.bincount(tokens, minlength=max(size, len(self.counts)))
        if len(counts) > len(self.counts):
            counts[: len(self.counts)] += self.counts
            self.counts = counts
        else:
            self.counts += counts


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
