"""The parser of all text logs: lines in, parsed by a grammar, a table out.

A format is a `Grammar`: which lines matter and what they contain. Memory is bounded by the records,
not by the size of the file: other lines leave nothing in memory.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from trimtab.core.block import IntArray
from trimtab.core.errors import UnreadableLog
from trimtab.readers.aliases import Alias
from trimtab.readers.formats import Format
from trimtab.readers.log_file import LineFile, Progress
from trimtab.readers.ranks import rows_of_others
from trimtab.readers.table import Table

Fields = Iterable[tuple[str, object]]
"""Names and cells."""

NUMBER: Final = (
    r"(?>[-+]?(?:\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+|[nN][aA][nN]|[iI][nN][fF]))"
)
"""A number as loggers print it, with groups of digits, NaN and infinity. It matches in one way
only: otherwise a line that nearly fits would be tried with every split of its numbers."""

NAME_CHARS = 128
"""A longer name is not that of a metric."""

LINE_CHARS = 1 << 14
"""A longer line is not a record: real ones have a few hundred characters. The time of a pattern may
grow with the square of this."""

_SAMPLE_LINES = 1000
"""Lines with a mark that are examined to recognise a format: most of them are records."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

MAX_LAYOUTS = 8
"""Layouts learned for one kind of line. A log has two or three; a hostile one must not make us
compile a pattern for each of its lines."""

_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,5})\]|(\d{1,5}): )")
"""How torchrun and `srun --label` begin a line."""

_NO_RANK = -1

# What a log looks like


class LinePlace(Enum):
    """Where the values of a line belong."""

    RECORD = auto()
    """In a new record."""
    ABOVE = auto()
    """In the record above: a record of several lines."""
    BELOW = auto()
    """In the next record: printed before it. The first value wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """One kind of line."""

    mark: str
    """Text in every such line. Tried before the pattern, because most lines are irrelevant."""
    pattern: re.Pattern[str]
    """Found anywhere in the line, so that any launcher prefix is accepted. Its groups are cells,
    under the names of the groups."""
    fields: Callable[[str], Fields] | None = None
    """Parses the rest of the line, after the pattern."""
    place: LinePlace = LinePlace.RECORD
    prefix: str = ""
    """Prepended to the names of the fields, to distinguish evaluation from training."""
    count: str = ""
    """The column of the next record that counts such lines before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """One text format."""

    name: str
    """The name of the format, as given to `--format`."""
    trainer: str
    """The trainer that writes such logs."""
    sign: re.Pattern[str]
    """Recognises the format, in any line that may hold a record."""
    lines: tuple[TextLine, ...]
    """The kinds of lines, in the order in which they are tried."""
    meanings: tuple[Alias, ...] = ()
    """What the columns mean, as far as it differs from the alias table."""
    grouped: frozenset[str] = frozenset()
    """Columns whose digits are in groups: 1,234."""
    finish: Callable[[Table], None] | None = None
    """Corrects what can be judged only once the whole log is read."""


class Pairs:
    """Finds names and values in the rest of a line.

    Names are to be bounded (`{1,99}`): without an end, each position in a long line would be the
    start of one.
    """

    def __init__(self, name: str, value: str, end: str = "") -> None:
        self._value = value
        self._pair = re.compile(f"{name}({value}){end}")

    def __call__(self, rest: str) -> list[tuple[str, str]]:
        """Return names and values, one pair at a time."""
        return self._pair.findall(rest)

    def layout(self, rest: str) -> tuple[list[str], str]:
        """Return the names in the rest of a line, and a pattern for lines that look like it."""
        names, pattern, position = [], "", 0
        for pair in self._pair.finditer(rest):
            start, end = pair.span(1)
            pattern += _digits(rest[position : pair.start()]) + _blanks(rest[pair.start() : start])
            pattern += re.escape(pair[1]) + _blanks(rest[end : pair.start(2)]) + f"({self._value})"
            names.append(pair[1])
            position = pair.end(2)
        return names, pattern + _digits(rest[position:])


# How it is read


def text_format(grammar: Grammar) -> Format:
    """Return the format that a grammar describes."""

    def matches(head: bytes) -> bool:
        text = head.decode("utf-8", "replace")
        marks = [line.mark for line in grammar.lines if line.place is LinePlace.RECORD]
        return any(
            len(line) <= LINE_CHARS and grammar.sign.search(_COLOURS.sub("", line))
            for mark in marks
            for line in islice(_lines_with(mark, text), _SAMPLE_LINES)
        )

    def load(path: Path, progress: Progress) -> Table:
        file = LineFile(path, progress)
        parser = _Parser(grammar)
        for lines in file.chunks():
            parser.add_lines(lines, unfinished=file.unfinished)
        return parser.finish(path, file.notes)

    return Format(
        name=grammar.name,
        description=f"the text log of {grammar.trainer}",
        suffixes=(),
        matches=matches,
        load=load,
    )


class _Kind:
    """A kind of line, and the layouts seen so far."""

    def __init__(self, line: TextLine) -> None:
        self.line = line
        self.mark = line.mark
        self.search = line.pattern.search
        self.layouts: list[_Layout] = []
        """The one that matched last comes first."""
        if line.fields is None:  # the pattern catches all there is
            self.layouts.append(_Layout(list(line.pattern.groupindex), ".*"))

    def fit(self, found: re.Match[str], row: int) -> bool:
        """Parse the line by a known layout; return whether one matched."""
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
            self.layouts.append(_Layout(names, pattern))


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
        self._flush()

    def finish(self, path: Path, notes: Iterable[str]) -> Table:
        """Return the table; raises UnreadableLog if there is no record in it."""
        if not self._num_records:
            raise UnreadableLog(
                f"{path} holds no record as {self._grammar.trainer} prints them; give the output "
                "of the rank that prints, or another format"
            )
        table = self._table
        table.meanings |= {meaning.name: meaning for meaning in self._grammar.meanings}
        table.add_note(*notes)
        others = rows_of_others(np.array(self._ranks))
        table.leave_out(others)
        table.note_counts(
            {
                "Lines cut off in the middle, left out": self._num_cut,
                f"Lines of more than {LINE_CHARS} characters, left out": self._num_long,
                "Records of further ranks, left out": len(others),
            }
        )
        if self._grammar.finish:
            with np.errstate(all="ignore"):  # a log may hold numbers of any size
                self._grammar.finish(table)
        return table

    def _add(self, kind: _Kind, found: re.Match[str]) -> None:
        line, rank = kind.line, _rank_of(found.string)
        waiting = self._waiting.get(rank)
        if line.place is LinePlace.RECORD:
            row = self._num_records
            if kind.fit(found, row) or self._add_unlike(kind, found):
                if waiting:
                    self._write(row, self._waiting.pop(rank).items())
                self._ranks.append(rank)
                self._last_record[rank] = row
                self._num_records += 1
        elif line.place is LinePlace.ABOVE:
            if rank in self._last_record:
                self._write(self._last_record[rank], _fields(line, found))
        else:
            waiting = dict(_fields(line, found)) | (waiting or {})
            if line.count:
                before = waiting.get(line.count)
                waiting[line.count] = before + 1.0 if isinstance(before, float) else 1.0
            self._waiting[rank] = waiting

    def _add_unlike(self, kind: _Kind, found: re.Match[str]) -> bool:
        """Add a record that looks like none before; return whether there was anything in it."""
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

    def _flush(self) -> None:
        """Move what was collected into the table."""
        index = self._table.new_rows(self._num_records - self._table.num_rows)
        gathered: list[tuple[str, IntArray, Sequence[object]]] = [
            (name, np.array(rows), cells) for name, (rows, cells) in self._columns.items()
        ]
        for kind in self._kinds:
            for layout in kind.layouts:
                gathered += layout.flush()
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


def _fields(kind: TextLine, found: re.Match[str]) -> list[tuple[str, object]]:
    caught = [(name, cell) for name, cell in found.groupdict().items() if cell is not None]
    if not kind.fields:
        return caught
    rest = kind.fields(found.string[found.end() :])
    if kind.prefix:
        rest = [(kind.prefix + name, cell) for name, cell in rest]
    return [*caught, *rest]


class _Layout:
    """Lines of one layout: where their values are, and the values not yet flushed.

    The next line mostly looks like the last one, so its pattern is compiled from it: what lies
    between the values becomes one pattern that catches them all at once, in a third of the time. A
    line that does not fit is parsed pair by pair, with the same result.
    """

    def __init__(self, names: Sequence[str], pattern: str) -> None:
        self._names = names
        self.match = re.compile(pattern).fullmatch
        self.rows: list[int] = []
        self.cells: list[tuple[str, ...]] = []

    def flush(self) -> Iterator[tuple[str, IntArray, Sequence[str]]]:
        """Yield name, rows and cells of each column since the last call."""
        rows, cells = np.array(self.rows), self.cells
        self.rows, self.cells = [], []
        if len(rows):
            for name, column in zip(self._names, zip(*cells, strict=True), strict=True):
                yield name, rows, column


def _blanks(text: str) -> str:
    """Return a pattern for the text between a name and its value, where blanks vary."""
    return " ++".join(re.escape(part) for part in re.split(" +", text))


def _digits(text: str) -> str:
    """Return a pattern for the text between two pairs, in which unnamed numbers vary."""
    return r"[\d.,]++".join(_blanks(part) for part in re.split(r"\d[\d.,]*", text))


# Logs of several ranks in one file


def _rank_of(line: str) -> int:
    """Return the rank that printed a line; -1 if unknown."""
    found = _RANK.match(line)
    return int(found[1] or found[2]) if found else _NO_RANK
