"""W&B: the `.wandb` file of a run, as offline mode leaves it.

Neither wandb nor protobuf is needed.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trimtab.core.errors import UnreadableLog
from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers import protowire
from trimtab.readers.trackers.conventions import CALL_STEP, correct_tracker
from trimtab.readers.trackers.protowire import BYTES, FIXED64, VARINT, BadMessage

BLOCK_BYTES = 1 << 15

RECORD_BYTES = 1 << 26
"""A longer record is left out: a line of history takes some thousand bytes."""

_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HEADER = struct.Struct("<IHB")
_TYPE_CRCS = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}

_MARK = b":W&B\xe1\xbe"
_FILE_HEADER_BYTES = 7

_HISTORY = 2  # field of a record
_ITEM, _HISTORY_STEP = 1, 2  # fields of a history record
_KEY, _NESTED_KEY, _INTEGER, _NUMBER, _TEXT, _VALUE_JSON = 1, 2, 5, 6, 7, 16  # fields of an item

_BATCH = 4096
"""Rows that are put into the table at once."""

_CELL_BYTES = 64
"""No number is longer as text; a longer cell is a list or a picture."""

_Cell = str | float


# The run file


class ChunkLog:
    """The records of one file: a log of LevelDB, chunks in blocks of 32 KiB.

    A chunk is [checksum][length u16][type], then its bytes; a record is one chunk, or a first, some
    middle ones and a last. No chunk crosses the end of a block, so that reading goes on with the
    next block after damage.
    """

    def __init__(self, path: Path, progress: Progress, *, header_bytes: int) -> None:
        self._path = path
        self._progress = progress
        self._header_bytes = header_bytes
        self._parts: list[bytes] = []
        """The chunks so far of a record that is not complete."""
        self.num_bad = 0
        """Damaged offsets: chunks, or ends of blocks, that are not what was written."""
        self.num_long = 0
        self.is_cut = False
        """Whether the last record is not complete."""

    def records(self) -> Iterator[bytes]:
        """Yield the sound records; what was not sound is counted."""
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = self._header_bytes  # the first block holds the header of the file too
            while block := _read_block(file, size):
                yield from self._block(block, start, is_last=file.tell() >= size)
                start = 0
                self._progress(file.tell(), size)
        self.is_cut |= bool(self._parts)

    def _block(self, block: bytes, offset: int, *, is_last: bool) -> Iterator[bytes]:
        while offset + _HEADER.size <= len(block):
            crc, length, kind = _HEADER.unpack_from(block, offset)
            start, end = offset + _HEADER.size, offset + _HEADER.size + length
            if kind not in _TYPE_CRCS:
                # Zeros to the end are what is left of a file that was made room for.
                self._damage(any(block[offset:]))
                return
            if end > len(block):
                if is_last:
                    self._parts, self.is_cut = [], True
                else:
                    self._damage(True)
                return
            chunk = block[start:end]
            offset = end
            if zlib.crc32(chunk, _TYPE_CRCS[kind]) == crc:
                yield from self._join(kind, chunk)
            else:
                self._damage(True)
        self.is_cut |= is_last and any(block[offset:])

    def _join(self, kind: int, chunk: bytes) -> Iterator[bytes]:
        """Yield the record that a chunk completes, if it completes one."""
        if kind in (_FULL, _FIRST):
            self.num_bad += bool(self._parts)
            self._parts = [chunk]
        elif self._parts:
            self._parts.append(chunk)
        if kind in (_FULL, _LAST) and self._parts:
            record, self._parts = b"".join(self._parts), []
            yield record
        elif sum(map(len, self._parts)) > RECORD_BYTES:
            self.num_long += 1
            self._parts = []

    def _damage(self, really: bool) -> None:
        self.num_bad += really
        self._parts = []


def _read_block(file: BinaryIO, size: int) -> bytes:
    # What is written from now on is left to the next reading.
    return file.read(max(0, min(BLOCK_BYTES, size - file.tell())))


def _read_run_file(path: Path, progress: Progress, wanted: Wanted) -> Table:
    log = ChunkLog(path, progress, header_bytes=_FILE_HEADER_BYTES)
    table = Table()
    rows: list[dict[str, _Cell]] = []
    num_malformed = 0
    for record in log.records():
        try:
            rows += _rows(record)
        except BadMessage:
            num_malformed += 1
        if len(rows) >= _BATCH:
            table.add_records(rows)
            rows = []
    table.add_records(rows)
    counts = {
        "Damaged places (by checksum), skipped": log.num_bad + num_malformed,
        "Records too long to hold history, left out": log.num_long,
        "Last record cut off, left out": int(log.is_cut),
    }
    table.note_counts(counts)
    if not table.num_rows:
        found = " ".join(table.notes) or "nothing is damaged"
        raise UnreadableLog(f"{path} has no history ({found}); check that the run logged anything")
    return table


def _rows(record: bytes) -> list[dict[str, _Cell]]:
    """Return the row of a history record; none for other kinds of records."""
    return [
        _row(record, first, last)
        for number, wire, first, last in protowire.fields(record, 0, len(record))
        if (number, wire) == (_HISTORY, BYTES)
    ]


def _row(data: bytes, start: int, end: int) -> dict[str, _Cell]:
    row: dict[str, _Cell] = {}
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (_ITEM, BYTES):
            name, cell = _item(data, first, last)
            if cell is not None:
                row[name] = cell
        elif (number, wire) == (_HISTORY_STEP, BYTES):
            for inner, kind, value, _ in protowire.fields(data, first, last):
                if (inner, kind) == (1, VARINT):
                    row.setdefault(CALL_STEP, float(protowire.signed(value)))
    return row


def _item(data: bytes, start: int, end: int) -> tuple[str, _Cell | None]:
    """Return name and cell of a history item; no cell if it holds neither number nor text."""
    names: list[str] = []
    cell: _Cell | None = None
    for number, wire, first, last in protowire.fields(data, start, end):
        if number in (_KEY, _NESTED_KEY) and wire == BYTES:
            names.append(protowire.text(data, first, last))
        elif number in (_VALUE_JSON, _TEXT) and wire == BYTES:
            # NaN and Infinity are bare, or in quotes as older versions write them.
            cell = protowire.text(data, first, min(last, first + _CELL_BYTES)).strip('"')
            cell += "..." if last - first > _CELL_BYTES else ""
        elif (number, wire) == (_NUMBER, FIXED64):
            cell = protowire.double(data, first)
        elif (number, wire) == (_INTEGER, VARINT):
            cell = float(first >> 1 if first % 2 == 0 else -(first >> 1) - 1)
    return "/".join(names), cell


WANDB = Format(
    name="wandb",
    description="W&B run files (.wandb)",
    suffixes=(".wandb",),
    matches=lambda head: head.startswith(_MARK),
    load=_read_run_file,
    finish=correct_tracker,
    binary=True,
    logs_among=lambda files: newest_first([file for file in files if file.suffix == ".wandb"]),
)
