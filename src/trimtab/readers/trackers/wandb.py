"""W&B: the `.wandb` file of a run, as offline mode leaves it.

Neither wandb nor protobuf is needed.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers import protowire
from trimtab.readers.trackers.conventions import CALL_STEP, correct_tracker
from trimtab.readers.trackers.protowire import BYTES, FIXED64, VARINT, BadMessage, Damage

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


def _read_run_file(path: Path, progress: Progress, wanted: Wanted) -> Table:
    damage = Damage()
    table = Table()
    rows: list[dict[str, _Cell]] = []
    for record in _records(path, progress, damage):
        try:
            rows += _rows(record)
        except BadMessage:
            damage.num_bad += 1
        if len(rows) >= _BATCH:
            table.add_records(rows)
            rows = []
    table.add_records(rows)
    table.note_counts(damage.counts)
    return table


def _records(path: Path, progress: Progress, damage: Damage) -> Iterator[bytes]:
    """Yield the records of a file: each is one chunk, or a first, some middle ones and a last."""
    record: bytearray | None = None
    for kind, chunk in _chunks(path, progress, damage):
        if kind in (_FULL, _FIRST):
            damage.num_bad += record is not None
            record = bytearray()
        if record is None:
            continue
        record += chunk
        if kind in (_FULL, _LAST):
            yield bytes(record)
            record = None
        elif len(record) > RECORD_BYTES:
            damage.num_long += 1
            record = None
    damage.num_cut |= record is not None


def _chunks(path: Path, progress: Progress, damage: Damage) -> Iterator[tuple[int, bytes]]:
    """Yield type and bytes of the chunks of a file, a log of LevelDB, up to the first damage.

    A chunk is [checksum][length u16][type], then its bytes. None crosses the end of a block.
    """
    with path.open("rb") as file:
        # What is written from now on is left to the next reading.
        size = os.fstat(file.fileno()).st_size
        start = _FILE_HEADER_BYTES  # the first block holds the header of the file too
        while block := file.read(max(0, min(BLOCK_BYTES, size - file.tell()))):
            is_cut, left = True, size - file.tell()
            while start + _HEADER.size <= len(block):
                crc, length, kind = _HEADER.unpack_from(block, start)
                end = start + _HEADER.size + length
                chunk = block[start + _HEADER.size : end]
                if kind not in _TYPE_CRCS or zlib.crc32(chunk, _TYPE_CRCS[kind]) != crc:
                    is_cut = kind in _TYPE_CRCS and end > len(block)
                    break
                yield kind, chunk
                start = end
            if block[start:].strip(b"\0"):  # zeros fill a block, and room that was never used
                if is_cut and not left:
                    damage.num_cut = 1
                else:
                    damage.num_lost_bytes = len(block) - start + left
                return
            start = 0
            progress(size - left, size)


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
