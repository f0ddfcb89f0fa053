"""The log of LevelDB, in which W&B keeps a run: chunks in blocks of 32 KiB.

A chunk is [checksum][length u16][type], then its bytes; a record is one chunk, or a first, some
middle ones and a last. No chunk crosses the end of a block, so that reading goes on with the next
block after damage.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trimtab.readers.log_file import Progress

BLOCK_BYTES = 1 << 15

RECORD_BYTES = 1 << 26
"""A longer record is left out: a line of history takes some thousand bytes."""

_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HEADER = struct.Struct("<IHB")
_TYPE_CRCS = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}


class ChunkLog:
    """The records of one file."""

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
        """The sound records; what was not sound is counted."""
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
        """The record that a chunk completes, if it completes one."""
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
