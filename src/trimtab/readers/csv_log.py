"""CSV and TSV, also of Lightning's CSVLogger: a header line, then one row per line.

Logs are cut off by crashes, appended to by restarts and edited by hand: what cannot be right is
counted in the notes, and the rest is read.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.errors import UnreadableLog
from trimtab.readers.cells import find_number, to_matrix
from trimtab.readers.folders import first_number
from trimtab.readers.formats import Format
from trimtab.readers.log_file import LineFile, Progress
from trimtab.readers.table import MAX_COLUMNS, Table, Wanted
from trimtab.readers.trackers.conventions import correct_export

DELIMITERS = (",", "\t", ";")

QUOTED_LINES = 64
"""Lines that a quoted cell may span. A quote that is still open after them is a mistake of the
logger; without a limit it would swallow the rest of the file."""

BATCH_CELLS = 1 << 19
"""Cells converted at once: short rows under a wide header are padded in memory."""

_SAMPLE_LINES = 20
"""Lines examined to recognise the format."""

_DIGITS = re.compile(r"[\d.]++")

_LOCAL_NUMBER = re.compile(
    r"""(?<![^;\t"])[ ]*([+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+))(?:,(\d+(?:[eE][+-]?\d+)?))?"""
    r"""[ ]*(?=[;\t"]|$)"""
)
"""A number as German, French and most other spreadsheets write it, in a cell of its own; points
are between thousands, in lines that have a decimal comma."""

_SHORT = "row{s} {has} fewer cells than the header; the others are missing"
_LONG = "row{s} {has} more cells than the header; the extra ones are left out"
_REPEATED = "header line{s} repeated among the rows {is} skipped"
_CHANGED = "header line{s} among the rows {has} other columns, which are used from there on"
_UNCLOSED = "quote{s} {is} never closed"
_CUT = "line{s} cut off in the middle {is} left out"
_COUNTED = (_SHORT, _LONG, _REPEATED, _CHANGED, _UNCLOSED, _CUT)


def read_csv(path: Path, progress: Progress, wanted: Wanted) -> Table:
    """Read a CSV or TSV file; raises UnreadableLog if it has no rows."""
    file = LineFile(path, progress)
    sheet = _Sheet(path)
    for lines in file.chunks():
        sheet.add_lines(lines, unfinished=file.unfinished)
    return sheet.finish(file.notes)


def is_csv(head: bytes) -> bool:
    """Return whether these bytes begin with a line of names, followed by a line with a number."""
    lines = [line for line in head.decode("utf-8-sig", "replace").splitlines() if line.strip()]
    if not lines:
        return False
    delimiter = _find_delimiter(lines[0])
    lines = lines[:_SAMPLE_LINES]
    names, *rows = (_split(line, delimiter) for line in _with_points(lines, delimiter))
    if len(names) < 2 or _has_number(names):
        return False
    words = _DIGITS.sub("", lines[0])
    if any(line != lines[0] and _DIGITS.sub("", line) == words for line in lines[1:]):
        return False  # a sentence with numbers in it, printed again with others
    return not rows or sum(len(row) > 1 and _has_number(row) for row in rows) >= len(rows) / 2


class _Sheet:
    """Collects the rows of a CSV file into a table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = Table()
        self._delimiter = ""
        self._header: list[str] = []
        self._names: list[str] = []
        self._mark = ""
        """What a header line begins with."""
        self._open: list[str] = []
        """Lines since a quote that was not closed yet."""
        self._counts = dict.fromkeys(_COUNTED, 0)

    def add_lines(self, lines: list[str], *, unfinished: bool) -> None:
        """Add the next lines; `unfinished` means that the last of them has no line end."""
        if self._add_numbers(lines):
            return
        lines = self._join_quoted(lines)
        if unfinished:
            lines += self._release_open()
        self._add(lines, unfinished=unfinished)

    def finish(self, notes: Sequence[str]) -> Table:
        """Return the table; raises UnreadableLog if there is no row in it."""
        self._add(self._release_open())
        if not self._header:
            raise UnreadableLog(f"{self._path} holds no line of text; give a log with rows")
        self._table.add_note(*notes)
        self._table.note_counts(self._counts)
        if not self._table.num_rows:
            header = self._delimiter.join(self._header)
            self._table.add_note(f"There is nothing but a header line: {header[:80]!r}.")
        return self._table

    def _add_numbers(self, lines: list[str]) -> bool:
        """Add lines that are whole rows of numbers and nothing else, as most of a log is."""
        if not self._header or self._open or not any(lines):
            return False
        matrix = to_matrix(_with_points(lines, self._delimiter), self._delimiter)
        if matrix is None or matrix.shape[1] != len(self._header):
            return False
        self._add_columns(len(matrix), np.ascontiguousarray(matrix.T))
        return True

    def _add(self, lines: list[str], *, unfinished: bool = False) -> None:
        lines = [line for line in lines if line and not line.isspace()]
        start = 0
        if not self._header and lines:
            self._set_header(lines[0])
            start = 1
        lines = _with_points(lines, self._delimiter)
        marked = [n for n, line in enumerate(lines) if line.startswith(self._mark)]
        for position in marked:
            if position >= start and self._is_header(lines[position]):
                self._add_rows(lines[start:position])
                self._set_header(lines[position])
                start = position + 1
        self._add_rows(lines[start:], unfinished=unfinished)

    def _set_header(self, line: str) -> None:
        if not self._header:
            self._delimiter = _find_delimiter(line)
        header = [name.strip() for name in _split(line, self._delimiter)]
        if header == self._header:
            self._counts[_REPEATED] += 1
            return
        if self._header:
            self._counts[_CHANGED] += 1
        elif all(find_number(name) is not None for name in header):
            raise UnreadableLog(
                f"{self._path} begins with numbers ({line[:80]!r}), not with the names of its "
                "columns; put a header line on top, such as 'step,loss'"
            )
        self._header = header
        self._names = unique_names(header)
        # An empty first name, as pandas writes over its index, would mark every line.
        start = line.split(self._delimiter)[0]
        self._mark = start if start.strip() else line
        for name in self._names:
            # A column is known from here on, even if no row is long enough to fill it.
            self._table.add(name, self._table.new_rows(0), ())
        del self._names[MAX_COLUMNS:]

    def _is_header(self, line: str) -> bool:
        cells = _split(line, self._delimiter)
        return cells[0].strip() == self._header[0] and not _has_number(cells)

    def _add_rows(self, lines: list[str], *, unfinished: bool = False) -> None:
        batch = BATCH_CELLS // max(1, len(self._names)) + 1
        for start in range(0, len(lines), batch):
            rows = [_split(line, self._delimiter) for line in lines[start : start + batch]]
            last = start + batch >= len(lines)
            if unfinished and last and len(rows[-1]) < len(self._header):
                # Its last cell may be half a number, so no part of it can be trusted.
                rows.pop()
                self._counts[_CUT] += 1
            lengths = set(map(len, rows))
            if lengths != {len(self._names)}:
                self._fit(rows, min(max(lengths, default=0), len(self._names)))
            self._add_columns(len(rows), zip(*rows, strict=True))

    def _add_columns(self, num_rows: int, columns: Iterable[Sequence[object] | FloatArray]) -> None:
        index = self._table.new_rows(num_rows)
        # Names beyond the longest row have no cells here.
        for name, cells in zip(self._names, columns, strict=False):
            self._table.add(name, index, cells)

    def _fit(self, rows: list[list[str]], width: int) -> None:
        for row in rows:
            self._counts[_SHORT] += len(row) < len(self._header)
            # Rows that end in a delimiter have one more cell and nothing in it.
            self._counts[_LONG] += any(cell.strip() for cell in row[len(self._header) :])
            del row[width:]
            row.extend([""] * (width - len(row)))

    def _join_quoted(self, lines: list[str]) -> list[str]:
        """Return the lines, with those joined over which a quoted cell runs."""
        if not self._open and not any('"' in line for line in lines):
            return lines
        joined: list[str] = []
        for line in lines:
            turns = line.count('"') % 2 == 1
            if not self._open and not turns:
                joined.append(line)
                continue
            self._open.append(line)
            if turns and len(self._open) > 1:
                joined.append("\n".join(self._open))
                self._open = []
            elif len(self._open) > QUOTED_LINES:
                joined += self._release_open()
        return joined

    def _release_open(self) -> list[str]:
        """Return the lines since a quote that was never closed, each to be read on its own."""
        lines, self._open = self._open, []
        self._counts[_UNCLOSED] += bool(lines)
        return lines


def _find_delimiter(header: str) -> str:
    return max(DELIMITERS, key=lambda delimiter: len(_split(header, delimiter)))


def _with_points(lines: list[str], delimiter: str) -> list[str]:
    """Return the lines with decimal points where cells have decimal commas."""
    if delimiter == "," or not any("," in line for line in lines):
        return lines
    return [_LOCAL_NUMBER.sub(_with_point, line) if "," in line else line for line in lines]


def _with_point(number: re.Match[str]) -> str:
    whole = number[1].replace(".", "")
    return whole if number[2] is None else f"{whole}.{number[2]}"


def _split(line: str, delimiter: str) -> list[str]:
    if '"' in line:
        # A cell that is too long, or a line end outside of quotes: the quotes mean nothing.
        with suppress(csv.Error):
            return next(csv.reader([line], delimiter=delimiter))
    return line.split(delimiter)


def _has_number(cells: Sequence[str]) -> bool:
    return any(find_number(cell) is not None for cell in cells)


def unique_names(header: Sequence[str]) -> list[str]:
    """Return the names, with a number for each that has none or that was there before."""
    counts: dict[str, int] = {}
    names: dict[str, None] = {}
    for position, name in enumerate(header, start=1):
        unique = name or f"column {position}"
        while unique in names:
            counts[name] = counts.get(name, 1) + 1
            unique = f"{name} ({counts[name]})"
        names[unique] = None
    return list(names)


CSV = Format(
    name="csv",
    description="CSV or TSV with a header line",
    suffixes=(".csv", ".tsv"),
    matches=is_csv,
    load=read_csv,
    finish=correct_export,
)


# Lightning's CSVLogger: `version_N/metrics.csv`, a new version for every start of a run

_VERSION = re.compile(r"^version_(\d{1,9})$")


def _lightning_logs(files: Sequence[Path]) -> list[Path]:
    found = [file for file in files if file.name == "metrics.csv"]
    by_version = sorted(found, key=lambda path: (first_number(_VERSION, path.parent.name), path))
    return by_version[::-1]


LIGHTNING = Format(
    name="lightning",
    description="metrics.csv of Lightning's CSVLogger",
    # It matches no content: a file that is given by its name is plain CSV.
    load=read_csv,
    logs_among=_lightning_logs,
)
