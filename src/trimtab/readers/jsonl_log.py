"""JSON lines: one JSON object per line, with the names of the metrics as keys."""

from collections.abc import Sequence
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.formats import Format
from trimtab.readers.json_objects import Record, parse_object
from trimtab.readers.lines import LineFile
from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table


def read(path: Path, progress: Progress) -> Table:
    """Read a file of JSON lines."""
    file = LineFile(path, progress)
    log = _Log(path)
    for lines in file.chunks():
        log.add_lines(lines, unfinished=file.unfinished)
    return log.finish(file.notes)


def recognises(head: bytes) -> bool:
    """Whether the first thing in these bytes is the start of a JSON object."""
    return head.decode("utf-8-sig", "replace").lstrip().startswith("{")


class _Log:
    """Collects the objects of a file into a table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = Table()
        self._num_lines = 0
        self._num_bad = 0
        self._first_bad = ""
        self._cut = False

    def add_lines(self, lines: list[str], *, unfinished: bool) -> None:
        """Add the next lines; `unfinished` means that the last of them has no line end."""
        records: list[Record] = []
        for line in map(str.strip, lines):
            self._num_lines += 1
            record = parse_object(line) if line else {}
            if record:
                records.append(record)
            elif record is None and unfinished:
                self._cut = True
            elif record is None:
                self._num_bad += 1
                self._first_bad = self._first_bad or f"line {self._num_lines}, {line[:60]!r}"
        self._table.add_records(records)

    def finish(self, notes: Sequence[str]) -> Table:
        """The table; raises UnreadableLog if there is no object in it."""
        if not self._table.num_rows:
            found = f"the first is {self._first_bad}" if self._num_bad else "there are no lines"
            raise UnreadableLog(
                f"{self._path}: no line is a JSON object with anything in it ({found}); "
                "write one object per line"
            )
        for note in notes:
            self._table.add_note(note)
        if self._num_bad:
            self._table.add_note(
                f"Lines that are not JSON objects, skipped: {self._num_bad} "
                f"(the first is {self._first_bad})."
            )
        if self._cut:
            self._table.add_note("Last line cut off in the middle, left out: 1.")
        return self._table


JSONL = Format(
    name="jsonl",
    description="JSON lines, one object per line",
    suffixes=(".jsonl", ".ndjson", ".json"),
    matches=recognises,
    load=read,
)
"""The format."""
