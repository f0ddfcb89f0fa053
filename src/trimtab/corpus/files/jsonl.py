"""JSON lines: a document in each line, as text or as token ids."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trimtab.corpus.files.rows import UNIT_BYTES, RowEncoder, Rows

_MAX_LINE = 2**26
"""Bytes of a line; a longer one is counted as unreadable and skipped."""

_BATCH_ROWS = 256
_BATCH_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFile:
    """A unit of work has the lines that begin in a range of bytes."""

    path: Path
    kind: str = "jsonl"

    def units(self) -> list[tuple[int, int, int]]:
        """Ranges of bytes."""
        size = self.path.stat().st_size
        cuts = [*range(0, size, UNIT_BYTES), size]
        return [(a, b, b - a) for a, b in pairwise(cuts) if b > a]

    def rows(self, first: int, last: int, encoder: RowEncoder) -> Iterator[Rows]:
        """The rows that begin in a range of bytes."""
        rows, values, size = Rows(), [], 0
        column: str | None = None
        for place, line in self._lines(first, last):
            row = _parse(line)
            if row is None:
                rows.unreadable += bool(line is None or line.strip())
                continue
            if column is None:
                column = encoder.column(list(row))
            source = row.get(encoder.options.source_column or "")
            rows.places.append(place)
            rows.sources.append(source if isinstance(source, str) else None)
            values.append(row.get(column))
            size += len(line or b"")
            if len(values) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                encoder.encode(rows, values)
                yield rows
                rows, values, size = Rows(), [], 0
        encoder.encode(rows, values)
        yield rows

    def _lines(self, first: int, last: int) -> Iterator[tuple[int, bytes | None]]:
        """Each line with its place; None for one that is too long."""
        with self.path.open("rb") as file:
            if first:
                # The line that the range begins in belongs to the range before.
                file.seek(first - 1)
                while not file.readline(_MAX_LINE).endswith(b"\n"):
                    if file.tell() >= last:
                        return
            while (place := file.tell()) < last:
                line = file.readline(_MAX_LINE)
                if not line:
                    return
                if len(line) < _MAX_LINE or line.endswith(b"\n"):
                    yield place, line
                    continue
                yield place, None
                while line and not line.endswith(b"\n"):
                    line = file.readline(_MAX_LINE)


def _parse(line: bytes | None) -> dict[str, Any] | None:
    """The object in a line; bytes that are not UTF-8 become replacement characters."""
    if line is None:
        return None
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
