"""Table: the named columns of a log, collected chunk by chunk.

Every format fills a table with cells under the names in the log; what the names mean is decided
afterwards, in the same way for all formats (`blocks.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trimtab.core.block import BoolArray, Column, FloatArray, IntArray
from trimtab.readers.aliases import Alias
from trimtab.readers.cells import to_numbers
from trimtab.readers.quoting import listed, printable, quoted

MAX_COLUMNS = 10_000
"""More names than this are data, not metrics: the norms of every tensor of a 70B model make some
3,000."""


@dataclass(slots=True)
class _Cells:
    """What was recorded in one column so far."""

    rows: list[IntArray] = field(default_factory=list)
    values: list[FloatArray] = field(default_factory=list)
    num_recorded: int = 0
    num_texts: int = 0
    first_text: str = ""


class Table:
    """Named columns of cells; a cell that was never added is missing."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.meanings: dict[str, Alias] = {}
        """What the format knows about its columns, by name; overrides the alias table."""
        self._left_out: list[IntArray] = []
        self._columns: dict[str, _Cells] = {}
        self._notes: list[str] = []
        self._too_many_columns = False

    def new_rows(self, number: int) -> IntArray:
        """Add empty rows; returns their indices, for `add`."""
        first = self.num_rows
        self.num_rows += number
        return np.arange(first, self.num_rows)

    def add(self, name: str, rows: IntArray, cells: Sequence[object] | FloatArray) -> None:
        """Record the cells of a column in these rows; without cells, the column merely exists."""
        name = printable(name)
        if name not in self._columns and len(self._columns) >= MAX_COLUMNS:
            self._too_many_columns = True
            return
        column = self._columns.setdefault(name, _Cells())
        numbers = to_numbers(cells)
        if len(numbers.values):
            # Columns without a gap share one array of rows: it costs 8 bytes a row, not a cell.
            column.rows.append(rows if numbers.present is None else rows[numbers.present])
            column.values.append(numbers.values)
        column.num_recorded += len(numbers.values)
        column.num_texts += numbers.num_texts
        column.first_text = column.first_text or numbers.first_text

    def add_records(self, records: Sequence[Mapping[str, object]]) -> None:
        """Add one row per record; what a record does not name is missing in its row."""
        columns: dict[str, tuple[list[int], list[object]]] = {}
        for row, record in enumerate(records):
            for name, value in record.items():
                rows, cells = columns.get(name) or columns.setdefault(name, ([], []))
                rows.append(row)
                cells.append(value)
        index = self.new_rows(len(records))
        for name, (rows, cells) in columns.items():
            self.add(name, index if len(rows) == len(records) else index[rows], cells)

    def replace(self, name: str, column: Column) -> None:
        """Replace a column, or add it."""
        cells = self._columns[name] = _Cells(num_recorded=int(column.present.sum()))
        if cells.num_recorded:
            cells.rows.append(np.flatnonzero(column.present))
            cells.values.append(column.values[column.present])

    def remove(self, name: str) -> None:
        """Remove a column."""
        del self._columns[name]

    def add_note(self, note: str) -> None:
        """Add a sentence about the file to the notes."""
        self._notes.append(note)

    @property
    def names(self) -> list[str]:
        """All columns that were found, in the order of the file."""
        return list(self._columns)

    @property
    def recorded(self) -> dict[str, int]:
        """The columns in which a number was recorded, and how many were."""
        counts = {name: column.num_recorded for name, column in self._columns.items()}
        return {name: count for name, count in counts.items() if count}

    def first_text(self, name: str) -> str:
        """The first cell of a column that was neither a number nor missing, if there was one."""
        return self._columns[name].first_text

    @property
    def notes(self) -> list[str]:
        """The notes on the file and its cells."""
        notes = list(self._notes)
        if self._too_many_columns:
            notes.append(f"There are more than {MAX_COLUMNS} columns; the others are left out.")
        texts = {name: column for name, column in self._columns.items() if column.num_texts}
        textual = [name for name, column in texts.items() if not column.num_recorded]
        if textual:
            notes.append(f"Columns without a number, left out: {listed(textual)}.")
        for name, column in texts.items():
            if column.num_recorded:
                notes.append(
                    f"Cells of {quoted(name)} that are not numbers, treated as missing: "
                    f"{column.num_texts} (the first is {quoted(column.first_text)})."
                )
        return notes

    def column(self, name: str) -> Column:
        """One column over all rows; missing where rows were left out, or if it does not exist."""
        cells = self._columns.get(name, _Cells())
        column = Column.missing(self.num_rows)
        for rows, values in zip(cells.rows, cells.values, strict=True):
            column.values[rows] = values
            column.present[rows] = True
        for rows in self._left_out:
            column.values[rows] = np.nan
            column.present[rows] = False
        return Column.complete(column.values) if column.present.all() else column

    def rows_with(self, names: Iterable[str]) -> BoolArray:
        """The rows in which any of these columns has a number."""
        found = np.zeros(self.num_rows, dtype=np.bool_)
        for name in names:
            for rows in self._columns[name].rows:
                found[rows] = True
        return found

    def leave_out(self, rows: IntArray) -> None:
        """Mark rows that are not records of the run."""
        self._left_out.append(rows)

    @property
    def kept(self) -> BoolArray:
        """The rows that were not left out."""
        kept = np.ones(self.num_rows, dtype=np.bool_)
        for rows in self._left_out:
            kept[rows] = False
        return kept
