"""The parser of all text logs: lines in, taken apart by a grammar, a table out.

Memory is bounded by the records, not by the size of the file: other lines leave nothing in memory.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from trimtab.core.block import IntArray
from trimtab.core.errors import UnreadableLog
from trimtab.readers.formats import Format
from trimtab.readers.lines import LineFile
from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table
from trimtab.readers.text.grammar import Fields, Grammar, Line, Place
from trimtab.readers.text.layouts import MAX_LAYOUTS, Layout, Pairs
from trimtab.readers.text.ranks import rank_of, rows_of_others

NAME_CHARS = 128
"""A longer name is not that of a metric."""

LINE_CHARS = 1 << 14
"""A longer line is not a record: real ones have a few hundred characters. The time of a pattern may
grow with the square of this."""

_SAMPLE_LINES = 1000
"""Lines with a mark that are examined to recognise a format: most of them are records."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def text_format(grammar: Grammar) -> Format:
    """The format that a grammar describes."""

    def recognises(head: bytes) -> bool:
        text = head.decode("utf-8", "replace")
        marks = [line.mark for line in grammar.lines if line.place is Place.RECORD]
        return any(
            len(line) <= LINE_CHARS and grammar.sign.search(_COLOURS.sub("", line))
            for mark in marks
            for line in islice(_lines_with(mark, text), _SAMPLE_LINES)
        )

    def read(path: Path, progress: Progress) -> Table:
        file = LineFile(path, progress)
        parser = _Parser(grammar)
        for lines in file.chunks():
            parser.add_lines(lines, unfinished=file.unfinished)
        return parser.finish(path, file.notes)

    description = f"the text log of {grammar.trainer}"
    return Format(
        name=grammar.name,
        description=description,
        suffixes=(),
        matches=recognises,
        load=read,
    )


class _Kind:
    """A kind of line, and the layouts seen so far."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.mark = line.mark
        self.search = line.pattern.search
        self.layouts: list[Layout] = []
        """The one that matched last comes first."""
        if line.fields is None:  # the pattern catches all there is
            self.layouts.append(Layout(list(line.pattern.groupindex), ".*"))

    def fit(self, found: re.Match[str], row: int) -> bool:
        """Parse the line by a known layout; returns whether one matched."""
        if self.line.fields is None and self.search(found.string, found.end()):
            return False  # two records in a line
        for position, layout in enumerate(self.layouts):
            values = layout.match(found.string, found.end())
            if values:
                layout.rows.append(row)
                layout.cells.append(found.groups() + values.groups())
                if position:
                    self.layouts.insert(0, self.layouts.pop(position))
                return True
        return False

    def learn(self, found: re.Match[str]) -> None:
        """Remember the layout of a line."""
        fields = self.line.fields
        rest = found.string[found.end() :]
        if isinstance(fields, Pairs) and len(self.layouts) < MAX_LAYOUTS:
            names, pattern = fields.layout(rest)
            names = [*found.groupdict(), *(self.line.prefix + name for name in names)]
            self.layouts.append(Layout(names, pattern))


class _Parser:
    """Collects the records of a text log into a table."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._kinds = [_Kind(line) for line in grammar.lines]
        self._table = Table()
        self._columns: dict[str, tuple[list[int], list[object]]] = {}
        """Rows and cells that are not in the table yet."""
        self._num_records = 0
        self._waiting: dict[int, dict[str, object]] = {}
        """What belongs to the next record of a rank."""
        self._ranks: list[int] = []
        self._last_record: dict[int, int] = {}
        """The row of a rank's last record."""
        self._num_cut = 0
        self._num_long = 0

    def add_lines(self, lines: list[str], *, unfinished: bool = False) -> None:
        """Parse the next lines; `unfinished` says that it is a single line without an end."""
        for line in lines:
            if "\x1b" in line:
                line = _COLOURS.sub("", line)
            if len(line) > LINE_CHARS:
                self._num_long += any(kind.mark in line for kind in self._kinds)
                continue
            for kind in self._kinds:
                if kind.mark in line and (found := kind.search(line)):
                    if unfinished:  # its last number may be half of one
                        self._num_cut += 1
                    else:
                        self._add(kind, found)
                    break
        self._hand_over()

    def finish(self, path: Path, notes: Iterable[str]) -> Table:
        """The table; raises UnreadableLog if there is no record in it."""
        if not self._num_records:
            raise UnreadableLog(
                f"{path} holds no record as {self._grammar.trainer} prints them; give the output "
                "of the rank that prints, or another format"
            )
        table = self._table
        table.meanings |= {meaning.name: meaning for meaning in self._grammar.meanings}
        for note in notes:
            table.add_note(note)
        if self._num_cut:
            table.add_note(f"Lines cut off in the middle, left out: {self._num_cut}.")
        if self._num_long:
            table.add_note(
                f"Lines of more than {LINE_CHARS} characters, left out: {self._num_long}."
            )
        others = rows_of_others(np.array(self._ranks))
        if len(others):
            table.leave_out(others)
            table.add_note(f"Records of further ranks, left out: {len(others)}.")
        if self._grammar.finish:
            with np.errstate(all="ignore"):  # a log may hold numbers of any size
                self._grammar.finish(table)
        return table

    def _add(self, kind: _Kind, found: re.Match[str]) -> None:
        line, rank = kind.line, rank_of(found.string)
        waiting = self._waiting.get(rank)
        if line.place is Place.RECORD:
            row = self._num_records
            if kind.fit(found, row) or self._add_unlike(kind, found):
                if waiting:
                    self._write(row, self._waiting.pop(rank).items())
                self._ranks.append(rank)
                self._last_record[rank] = row
                self._num_records += 1
        elif line.place is Place.ABOVE:
            if rank in self._last_record:
                self._write(self._last_record[rank], _fields(line, found))
        else:
            waiting = dict(_fields(line, found)) | (waiting or {})
            if line.count:
                before = waiting.get(line.count)
                waiting[line.count] = before + 1.0 if isinstance(before, float) else 1.0
            self._waiting[rank] = waiting

    def _add_unlike(self, kind: _Kind, found: re.Match[str]) -> bool:
        """Add a record that looks like none before; whether there was anything in it."""
        again = kind.search(found.string, found.end())
        while again:
            # A restart continued the line that a crash had cut off: only what it wrote is complete.
            self._num_cut += 1
            found, again = again, kind.search(found.string, again.end())
        fields = _fields(kind.line, found)
        self._write(self._num_records, fields)
        kind.learn(found)
        return bool(fields)

    def _write(self, row: int, fields: Fields) -> None:
        columns = self._columns
        for name, cell in fields:
            rows, cells = columns.get(name) or columns.setdefault(name, ([], []))
            rows.append(row)
            cells.append(cell)

    def _hand_over(self) -> None:
        """Move what was collected into the table."""
        index = self._table.new_rows(self._num_records - self._table.num_rows)
        gathered: list[tuple[str, IntArray, Sequence[object]]] = [
            (name, np.array(rows), cells) for name, (rows, cells) in self._columns.items()
        ]
        for kind in self._kinds:
            for layout in kind.layouts:
                gathered += layout.hand_over()
        # By first record: of two names for a signal the earlier one wins, however the log is cut.
        gathered.sort(key=lambda column: int(column[1][0]) if len(column[1]) else 0)
        for name, rows, cells in gathered:
            if len(name) > NAME_CHARS:
                continue
            if None in cells:  # what a group did not catch
                rows = rows[[cell is not None for cell in cells]]
                cells = [cell for cell in cells if cell is not None]
            if name in self._grammar.grouped:
                cells = [cell.replace(",", "") if isinstance(cell, str) else cell for cell in cells]
            # Most columns have a cell in every record; they share one array of rows.
            self._table.add(name, index if np.array_equal(rows, index) else rows, cells)
        self._columns = {}


def _lines_with(mark: str, text: str) -> Iterator[str]:
    position = text.find(mark)
    while position >= 0:
        end = text.find("\n", position)
        end = end if end >= 0 else len(text)
        yield text[text.rfind("\n", 0, position) + 1 : end]
        position = text.find(mark, end)


def _fields(kind: Line, found: re.Match[str]) -> list[tuple[str, object]]:
    caught = [(name, cell) for name, cell in found.groupdict().items() if cell is not None]
    if not kind.fields:
        return caught
    rest = kind.fields(found.string[found.end() :])
    if kind.prefix:
        rest = [(kind.prefix + name, cell) for name, cell in rest]
    return [*caught, *rest]
