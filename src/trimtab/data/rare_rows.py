"""RareRows: which rows of a dataset hold rare tokens."""

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
        """From occurrences in any order."""
        order = np.lexsort((tokens, rows))
        return cls(rows=rows[order], tokens=tokens[order], num_rows=num_rows)

    @property
    def unavoidable(self) -> int:
        """Occurrences of a token that is in the same row already: no order helps there."""
        same = (np.diff(self.rows) == 0) & (np.diff(self.tokens) == 0)
        return int(same.sum())


def find_rare_windows(tokens: NDArray[np.integer], rare: ArrayLike, length: int) -> RareRows:
    """The rare tokens of a flat file that is read in windows: row i has tokens i * length on.

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
    """The rare tokens of a dataset of rows: arrays or lists of ids, or dicts with such a column.

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
    """All ids of a few rows, and the number of them in each row."""
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
    """Whether each id up to the largest rare one is rare."""
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
