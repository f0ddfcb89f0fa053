"""DocumentTable: which documents occur more than once, in bounded memory.

Up to `MAX_KEPT` different documents the table is exact. Beyond that it keeps the documents whose
hash ends in `level` zero bits, a random 1 in 2**level (distinct sampling, Gibbons 2001): the level
of a sum depends on what is in it, not on the order of the additions.
"""

import numpy as np
from numpy.typing import NDArray

MAX_KEPT = 2**19
"""Different documents that are kept: 17 MB."""

Column = NDArray[np.int64]
Columns = tuple[NDArray[np.uint64], Column, Column, Column, Column]

_PENDING = 2**17
"""Documents that wait to be sorted in: sorting a full table for each file would take hours."""


class DocumentTable:
    """One row per different document, sorted by hash."""

    def __init__(self, columns: Columns | None = None, level: int = 0) -> None:
        self._columns = _no_rows() if columns is None else columns
        self._level = level
        self._pending: list[Columns] = []

    def add(self, file: int, places: Column, lengths: Column, hashes: NDArray[np.uint64]) -> None:
        """Add documents of a file; empty ones are left out."""
        kept = lengths > 0
        ones = np.ones(int(kept.sum()), dtype=np.int64)
        self._add((hashes[kept], ones, lengths[kept], ones * file, places[kept]))

    def merge(self, other: "DocumentTable") -> None:
        """Add all documents of another table."""
        self._level = max(self._level, other.level)
        self._add(other.columns)

    def _add(self, columns: Columns) -> None:
        self._pending.append(columns)
        if sum(len(hashes) for hashes, *_ in self._pending) > _PENDING:
            self._sort_in()

    def _sort_in(self) -> None:
        if not self._pending:
            return
        hashes, counts, lengths, files, places = (
            np.concatenate(parts) for parts in zip(self._columns, *self._pending, strict=True)
        )
        self._pending = []
        # By file and place as well: the first row of a hash is where it occurs first.
        rows = np.lexsort((places, files, hashes))
        rows = rows[hashes[rows] & np.uint64(2**self._level - 1) == 0]
        hashes = hashes[rows]
        firsts = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1]))[: len(rows)])
        counts = np.add.reduceat(counts[rows], firsts) if len(rows) else counts[rows]
        hashes, rows = hashes[firsts], rows[firsts]
        while len(hashes) > MAX_KEPT:
            self._level += 1
            kept = hashes & np.uint64(2**self._level - 1) == 0
            hashes, counts, rows = hashes[kept], counts[kept], rows[kept]
        self._columns = (hashes, counts, lengths[rows], files[rows], places[rows])

    @property
    def columns(self) -> Columns:
        """Hashes, counts, lengths, and file and place of the first occurrence."""
        self._sort_in()
        return self._columns

    @property
    def level(self) -> int:
        """One in 2**level of the different documents is kept."""
        self._sort_in()
        return self._level

    @property
    def duplicates(self) -> int:
        """Documents that occurred before; an estimate if not all are kept."""
        return int((self.columns[1] - 1).sum()) << self.level

    @property
    def duplicate_tokens(self) -> int:
        """Tokens in them."""
        _, counts, lengths, *_ = self.columns
        return int(((counts - 1) * lengths).sum()) << self.level

    def most_repeated(self, limit: int) -> list[tuple[int, int, int, int]]:
        """File, place, length and count of the documents that occur most often."""
        _, counts, lengths, files, places = self.columns
        order = np.lexsort((places, files, -counts))[:limit]
        return [
            (int(files[i]), int(places[i]), int(lengths[i]), int(counts[i]))
            for i in order
            if counts[i] > 1
        ]


def _no_rows() -> Columns:
    none = np.zeros(0, dtype=np.int64)
    return (none.astype(np.uint64), none, none, none, none)
