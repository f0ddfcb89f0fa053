"""Statistics: what is counted. Sums of parts, so they merge in any order to the same result."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.corpus.counting import Counts, add_counts, trim
from trimtab.corpus.options import (
    LONG_DOCUMENT,
    MAX_DOCUMENT,
    MAX_EXAMPLES,
    MAX_SOURCES,
    OTHER_SOURCES,
)

MAX_KEPT = 2**19
"""Different documents that are kept: 17 MB."""

_Column = NDArray[np.int64]
Columns = tuple[NDArray[np.uint64], _Column, _Column, _Column, _Column]

_PENDING = 2**17
"""Documents that wait to be sorted in: sorting a full table for each file would take hours."""


class DocumentTable:
    """One row per different document, sorted by hash."""

    def __init__(self, columns: Columns | None = None, level: int = 0) -> None:
        self._columns = _no_rows() if columns is None else columns
        self._level = level
        self._pending: list[Columns] = []

    def add(self, file: int, places: _Column, lengths: _Column, hashes: NDArray[np.uint64]) -> None:
        """Add documents of a file; empty ones are left out."""
        kept = lengths > 0
        ones = np.ones(int(kept.sum()), dtype=np.int64)
        self._add((hashes[kept], ones, lengths[kept], ones * file, places[kept]))

    def merge(self, other: "DocumentTable") -> None:
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


LENGTH_BINS = MAX_DOCUMENT.bit_length() + 1
"""Documents of 0 tokens, 1, 2 to 3, 4 to 7, ..., and all that are longer than is read."""


@dataclass(slots=True, kw_only=True)
class SourceStatistics:
    """What was found in one source."""

    counts: Counts = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Occurrences of each token."""
    out_of_range: int = 0
    """Tokens whose id is not in the vocabulary."""
    repeated_tokens: int = 0
    """Tokens in phrases that are repeated."""
    repeated_runs: int = 0
    documents: int = 0
    empty_documents: int = 0
    long_documents: int = 0
    damaged_documents: int = 0
    """Documents whose text was decoded wrongly."""
    unreadable_rows: int = 0

    @property
    def tokens(self) -> int:
        """All tokens, those out of range included."""
        return int(self.counts.sum()) + self.out_of_range


SCALARS = tuple(name for name in SourceStatistics.__slots__ if name != "counts")
"""The numbers of a source."""


@dataclass(slots=True, kw_only=True)
class Statistics:
    """What was found in all files, or in a part of them."""

    sources: dict[str, SourceStatistics] = field(default_factory=dict)
    lengths: Counts = field(default_factory=lambda: np.zeros(LENGTH_BINS, dtype=np.int64))
    """Documents by the number of bits of their length."""
    table: DocumentTable = field(default_factory=DocumentTable)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    """The first repeated phrases: file, place, period."""
    longest: list[tuple[int, int, int]] = field(default_factory=list)
    """The longest documents: file, place, length."""
    damaged: list[tuple[int, int, str]] = field(default_factory=list)
    """The first documents with damaged text: file, place, what is wrong."""

    def source(self, name: str) -> SourceStatistics:
        """Return the statistics of a source; beyond the limit, all further sources share one."""
        if name not in self.sources and len(self.sources) >= MAX_SOURCES:
            name = OTHER_SOURCES
        return self.sources.setdefault(name, SourceStatistics())

    def add_documents(
        self, source: str, file: int, places: Counts, lengths: Counts, hashes: NDArray[np.uint64]
    ) -> None:
        """Count documents of a file by their lengths and their hashes."""
        self.table.add(file, places, lengths, hashes)
        found = self.source(source)
        found.documents += len(lengths)
        found.empty_documents += int((lengths == 0).sum())
        is_long = lengths >= LONG_DOCUMENT
        found.long_documents += int(is_long.sum())
        bits = np.ceil(np.log2(lengths + 1)).astype(np.int64)
        self.lengths += np.bincount(bits, minlength=LENGTH_BINS)
        self.longest += [
            (file, int(place), int(length))
            for place, length in zip(places[is_long], lengths[is_long], strict=True)
        ]
        self._keep_examples()

    def add_run(self, file: int, place: int, period: int) -> None:
        self.runs.append((file, place, period))
        self._keep_examples()

    def add_damage(self, file: int, place: int, what: str) -> None:
        self.damaged.append((file, place, what))
        self._keep_examples()

    def merge(self, other: "Statistics") -> None:
        for name, theirs in sorted(other.sources.items()):
            ours = self.source(name)
            ours.counts = trim(add_counts(ours.counts, theirs.counts))
            for scalar in SCALARS:
                setattr(ours, scalar, getattr(ours, scalar) + getattr(theirs, scalar))
        self.lengths = self.lengths + other.lengths
        self.table.merge(other.table)
        self.runs += other.runs
        self.longest += other.longest
        self.damaged += other.damaged
        self._keep_examples()

    def _keep_examples(self) -> None:
        if max(len(self.runs), len(self.longest), len(self.damaged)) > MAX_EXAMPLES:
            self.sort_examples()

    def sort_examples(self) -> None:
        """Keep the first examples, so that they do not depend on the order of the parts."""
        self.runs = sorted(self.runs)[:MAX_EXAMPLES]
        self.damaged = sorted(self.damaged)[:MAX_EXAMPLES]
        self.longest = sorted(self.longest, key=lambda one: (-one[2], one))[:MAX_EXAMPLES]
