"""JSON lines: one JSON object a line, with the names of the metrics as keys.

NaN and Infinity may stand there bare, as Python writes them, or as strings; null is missing.
Nested objects are flattened: {"train": {"loss": 2.5}} has the column train/loss.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.core.errors import UnreadableLog
from trimtab.readers.formats import Reader
from trimtab.readers.lines import LineFile, Progress
from trimtab.readers.table import Table

NESTED_LEVELS = 16
"""Objects nested deeper hold no metrics; without a limit their names could fill the memory."""

NAME_CHARS = 256
"""A longer name, made by flattening, is not that of a metric."""

# Every number in a block is a float; int() would refuse one of more than 4,300 digits.
decode_json = json.JSONDecoder(parse_int=float).raw_decode
"""The value at the start of a text, and where it ends; raises ValueError or RecursionError."""


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
    """The objects of a file on their way into a table."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = Table()
        self._num_lines = 0
        self._num_bad = 0
        self._first_bad = ""
        self._cut = False

    def add_lines(self, lines: list[str], *, unfinished: bool) -> None:
        """Take the next lines; `unfinished` says that the last of them has no line end."""
        records: list[Mapping[str, Any]] = []
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
            found = f"the first is {self._first_bad}" if self._num_bad else "there is none at all"
            raise UnreadableLog(
                f"{self._path}: no line of it is a JSON object with anything in it ({found}); "
                "write one object a line"
            )
        for note in notes:
            self._table.tell(note)
        if self._num_bad:
            self._table.tell(
                f"Lines that are not JSON objects, skipped: {self._num_bad} "
                f"(the first is {self._first_bad})."
            )
        if self._cut:
            self._table.tell("Last line cut off in the middle, left out: 1.")
        return self._table


def parse_object(line: str) -> Mapping[str, Any] | None:
    """The object in a line, flattened; None if there is none."""
    try:
        record, end = decode_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or end < len(line):
        return None
    return flatten(record)


def flatten(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with the members of the objects in it as members of its own."""
    return _flatten(record, "", 0) if dict in map(type, record.values()) else record


def _flatten(record: Mapping[str, Any], prefix: str, level: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix + key
        if len(name) > NAME_CHARS:
            continue
        if not isinstance(value, dict):
            flat[name] = value
        elif level < NESTED_LEVELS:
            flat |= _flatten(value, f"{name}/", level + 1)
    return flat


JSONL = Reader(
    description="JSON lines, one object a line",
    suffixes=(".jsonl", ".ndjson", ".json"),
    recognises=recognises,
    read=read,
)
"""The format."""
