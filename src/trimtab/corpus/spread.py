"""RareRows: which rows of a dataset hold rare tokens."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]

_CHUNK = 2**22
_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RareRows:
    """One entry for each occurrence of a rare token, sorted by row."""

    rows: Ids
    """The row of each occurrence."""
    tokens: Ids
    """Its token."""
    num_rows: int
    """Rows of the dataset."""

    @classmethod
    def of(cls, rows: Ids, tokens: Ids, num_rows: int) -> "RareRows":
        """Build from occurrences in any order."""
        order = np.lexsort((tokens, rows))
        return cls(rows=rows[order], tokens=tokens[order], num_rows=num_rows)

    @property
    def unavoidable(self) -> int:
        """Occurrences of a token that is in the same row already: no order helps there."""
        same = (np.diff(self.rows) == 0) & (np.diff(self.tokens) == 0)
        return int(same.sum())


def find_rare_windows(tokens: NDArray[np.integer], rare: ArrayLike, length: int) -> RareRows:
    """Find the rare tokens of a flat file read in windows: row i begins at token i * length.

    Tokens after the last whole window are left out. `tokens` may be a `np.memmap`.
    """
    num_rows = len(tokens) // length
    is_rare = _lookup(rare)
    places = [
        start
        + np.flatnonzero(_is_rare(tokens[start : min(start + _CHUNK, num_rows * length)], is_rare))
        for start in range(0, num_rows * length, _CHUNK)
    ]
    found = np.concatenate([np.zeros(0, dtype=np.int64), *places])
    return RareRows.of(found // length, np.asarray(tokens[found], dtype=np.int64), num_rows)


def find_rare_rows(dataset: Iterable[Any], rare: ArrayLike, column: str = "input_ids") -> RareRows:
    """Find the rare tokens of a dataset of rows: arrays or lists of ids, or dicts with a column.

    A dataset of HF datasets is read through Arrow, without a Python object for each token.
    """
    is_rare = _lookup(rare)
    rows, tokens, count = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], 0
    for flat, lengths in _batches(dataset, column):
        places = np.flatnonzero(_is_rare(flat, is_rare))
        ends = np.cumsum(lengths)
        rows.append(count + np.searchsorted(ends, places, side="right"))
        tokens.append(flat[places].astype(np.int64))
        count += len(lengths)
    return RareRows.of(np.concatenate(rows), np.concatenate(tokens), count)


def _batches(dataset: Iterable[Any], column: str) -> Iterator[tuple[NDArray[Any], list[int]]]:
    """Yield all ids of a few rows, and the number of them in each row."""
    if hasattr(dataset, "with_format") and hasattr(dataset, "iter"):
        for table in dataset.with_format("arrow").iter(_ROWS):
            values = table.column(column).combine_chunks()
            offsets = values.offsets.to_numpy()
            flat = values.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]]
            yield flat, np.diff(offsets).tolist()
        return
    rows: list[NDArray[Any]] = []
    for row in dataset:
        rows.append(np.asarray(row[column] if isinstance(row, dict) else row))
        if len(rows) == _ROWS:
            yield np.concatenate(rows), [len(one) for one in rows]
            rows = []
    if rows:
        yield np.concatenate(rows), [len(one) for one in rows]


def _lookup(rare: ArrayLike) -> NDArray[np.bool_]:
    """Return whether each id up to the largest rare one is rare."""
    ids = np.asarray(rare, dtype=np.int64)
    table = np.zeros(int(ids.max()) + 2 if len(ids) else 1, dtype=np.bool_)
    table[ids] = True
    return table


def _is_rare(tokens: NDArray[Any], is_rare: NDArray[np.bool_]) -> NDArray[np.bool_]:
    # The last entry is false, and stands for every id beyond the table; padding may be negative.
    last = len(is_rare) - 1
    if tokens.dtype.kind == "i":
        tokens = np.where(tokens < 0, last, tokens)
    found: NDArray[np.bool_] = is_rare[np.minimum(tokens, min(last, np.iinfo(tokens.dtype).max))]
    return found


_TRIES = 32
"""Random rows that are tried before all are looked at, from a random one on."""

_MAX_LOOKS = 1_000_000
"""Rows that are looked at in this way in an epoch, a few seconds: where no order helps, the search
should not last for hours."""

_PASSES = 4
"""A row that found no place may find one after others have moved."""

_Tokens = Counter[int]
_Change = tuple[int, int]
"""How many repeats, and tokens above the even share, a swap adds; negative is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadOrder:
    """The order of an epoch, and what could not be spread."""

    order: Ids
    """Rows in the order in which they are trained."""
    repeated: int
    """Occurrences of a rare token that is in the same batch already."""
    repeated_before: int
    """The same in the order that was given."""
    moved: int
    """Rows that changed places with another one."""


def spread(order: Ids, rare: RareRows, batch_rows: int, seed: tuple[int, ...]) -> SpreadOrder:
    """Spread the rows with rare tokens over the batches of an order; `seed` decides where to."""
    batches = _Batches(order, rare, batch_rows)
    before = batches.repeated()
    random = np.random.default_rng(seed)
    moved = 0
    for _ in range(_PASSES):
        swaps = 0
        for place in batches.misplaced():
            target = batches.find_target(place, random)
            if target is not None:
                batches.swap(place, target)
                swaps += 1
        moved += swaps
        if not swaps:
            break
    return SpreadOrder(
        order=batches.order, repeated=batches.repeated(), repeated_before=before, moved=moved
    )


class _Batches:
    """The rare tokens in each batch of an order."""

    def __init__(self, order: Ids, rare: RareRows, batch_rows: int) -> None:
        self.order = np.array(order, dtype=np.int64)
        self._rows = batch_rows
        self._looks = _MAX_LOOKS
        self._tokens: dict[int, _Tokens] = {}
        """The rare tokens of the row at each place that has some."""
        self._counts: dict[int, _Tokens] = {}
        """Those of each batch."""
        for place, token in zip(
            _places(self.order, rare).tolist(), rare.tokens.tolist(), strict=True
        ):
            if place >= 0:
                self._tokens.setdefault(place, Counter())[token] += 1
                self._counts.setdefault(place // batch_rows, Counter())[token] += 1
        num_batches = max(-(-len(self.order) // batch_rows), 1)
        total = sum(tokens.total() for tokens in self._tokens.values())
        heaviest = max((tokens.total() for tokens in self._tokens.values()), default=0)
        # No order can do better than to give the row with most rare tokens a batch of its own.
        self._share = max(-(-total // num_batches), heaviest)

    def repeated(self) -> int:
        """Count the occurrences of a token that is in the same batch already."""
        return sum(n - 1 for counts in self._counts.values() for n in counts.values() if n > 1)

    def misplaced(self) -> Iterator[int]:
        """Yield the places of rows that should move, while they should; the lightest rows first."""
        for place in sorted(self._tokens, key=lambda place: (self._tokens[place].total(), place)):
            if place not in self._tokens:
                continue
            counts = self._counts[place // self._rows]
            is_repeated = any(counts[token] > own for token, own in self._tokens[place].items())
            if is_repeated or counts.total() > self._share:
                yield place

    def find_target(self, place: int, random: np.random.Generator) -> int | None:
        """Return the best place to swap with; None if no swap is an improvement."""
        best, found = (0, 0), None
        for target in random.integers(len(self.order), size=_TRIES).tolist():
            change = self._change(place, target)
            if change < best:
                best, found = change, target
        if found is None:
            start = int(random.integers(len(self.order)))
            for step in range(min(len(self.order), self._looks)):
                self._looks -= 1
                target = (start + step) % len(self.order)
                if self._change(place, target) < best:
                    return target
        return found

    def _change(self, place: int, target: int) -> _Change:
        """Return what a swap changes: (repeated tokens, tokens above the even share)."""
        here, there = place // self._rows, target // self._rows
        if here == there:
            return (0, 0)
        none: _Tokens = Counter()
        own, other = self._tokens[place], self._tokens.get(target, none)
        one = self._change_of(here, own, other)
        two = self._change_of(there, other, own)
        return (one[0] + two[0], one[1] + two[1])

    def _change_of(self, batch: int, out: _Tokens, into: _Tokens) -> _Change:
        """Return the same change for one batch, which loses tokens and gets others."""
        counts = self._counts.get(batch, Counter())
        repeats = 0
        for token in out.keys() | into.keys():
            before = counts[token]
            after = before - out[token] + into[token]
            repeats += max(after - 1, 0) - max(before - 1, 0)
        load = counts.total()
        after = load - out.total() + into.total()
        return repeats, max(after - self._share, 0) - max(load - self._share, 0)

    def swap(self, place: int, target: int) -> None:
        self.order[[place, target]] = self.order[[target, place]]
        own, other = self._tokens.pop(place), self._tokens.pop(target, None)
        for tokens, old, new in ((own, place, target), (other, target, place)):
            if tokens is not None:
                self._tokens[new] = tokens
                self._counts[old // self._rows] -= tokens
                self._counts.setdefault(new // self._rows, Counter()).update(tokens)


def _places(order: Ids, rare: RareRows) -> NDArray[np.int64]:
    """Return the place in the order of each occurrence; -1 for rows that are not in it."""
    places: NDArray[np.int64] = np.full(max(rare.num_rows, int(order.max(initial=0)) + 1), -1)
    places[order] = np.arange(len(order))
    return places[rare.rows]
