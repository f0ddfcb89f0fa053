"""StoredColumns: columns that stay on disk until they are needed, for runs larger than memory.

A block of them looks like any other. A column is read when it is asked for, only in the rows of its
block, and the last ones read are kept.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.core.records.column import BoolArray, Column

CACHE_BYTES = 2**26
"""Bytes of columns that a block keeps. Source: 200 signals of one segment of a journal, twice."""

Rows = range | NDArray[np.int64]
"""The rows of the store that a block consists of."""


class ColumnStore(Protocol):
    """Where the columns are."""

    @property
    def names(self) -> Sequence[str]:
        """The signals."""
        ...

    def read(self, name: str, start: int, stop: int) -> Column:
        """Consecutive rows of a signal."""
        ...


class StoredColumns(Mapping[str, Column]):
    """The columns of some rows of a store."""

    def __init__(self, store: ColumnStore, rows: Rows) -> None:
        self._store = store
        self._rows = rows
        self._names = frozenset(store.names)
        self._kept: OrderedDict[str, Column] = OrderedDict()

    @property
    def length(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def cut(self, start: int, stop: int) -> "StoredColumns":
        """The columns of consecutive rows."""
        return StoredColumns(self._store, self._rows[start:stop])

    def select(self, chosen: BoolArray) -> "StoredColumns":
        """The columns of the chosen rows."""
        return StoredColumns(self._store, np.asarray(self._rows)[chosen])

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise KeyError(name)
        column = self._kept.pop(name, None)
        if column is None:
            column = self._read(name)
            size = max(9 * self.length, 1)
            while self._kept and (len(self._kept) + 1) * size > CACHE_BYTES:
                self._kept.popitem(last=False)
        self._kept[name] = column
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, name: str) -> Column:
        rows = self._rows
        if not len(rows):
            return Column.missing(0)
        if isinstance(rows, range):
            return self._store.read(name, rows.start, rows.stop)
        first = int(rows.min())
        column = self._store.read(name, first, int(rows.max()) + 1)
        return Column(column.values[rows - first], column.present[rows - first])
