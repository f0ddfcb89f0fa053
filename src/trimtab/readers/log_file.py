"""The bytes of a text log in blocks, decompressed if the file is gzip.

Memory is bounded by the block, not by the file, and what a gzip file may expand to is bounded too.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

Progress = Callable[[int, int], None]
"""Called now and then with the bytes done and the bytes in total."""

BLOCK_BYTES = 1 << 20
"""Bytes per block: some ten thousand rows, enough for whole-column conversion to pay off."""

GZIP_MARK = b"\x1f\x8b"

MAX_EXPANSION = 100
"""How many times its size a gzip file may expand to. Source: the public text logs that the tests
read compress 4 to 10 times; a decompression bomb reaches 1,000."""

FREE_BYTES = 1 << 28
"""A gzip file may always expand to this many bytes."""


class LogFile:
    """A text log as blocks of bytes."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._nul_bytes = 0
        self._gzip_note = ""

    def blocks(self) -> Iterator[bytes]:
        """The content in blocks, without NUL bytes."""
        with self._path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            is_gzip = file.peek(2)[:2] == GZIP_MARK
            done = 0
            for block in self._decompressed(file) if is_gzip else _plain(file):
                text = block.replace(b"\0", b"")
                self._nul_bytes += len(block) - len(text)
                yield text
                # The log of a run that is still going is longer now than it was at the start.
                done = file.tell() if is_gzip else done + len(block)
                self._progress(done, max(done, total))

    def read(self) -> bytes:
        """The whole content."""
        return b"".join(self.blocks())

    @property
    def notes(self) -> list[str]:
        """What had to be done to the file to read it."""
        notes = [self._gzip_note] if self._gzip_note else []
        if self._nul_bytes:
            notes.append(f"NUL bytes left out, as a crash leaves them: {self._nul_bytes}.")
        return notes

    def _decompressed(self, file: BinaryIO) -> Iterator[bytes]:
        """What the members of a gzip file hold, as far as it is sound."""
        decoder = zlib.decompressobj(wbits=31)
        num_read = num_out = 0
        data = b""
        while True:
            if not data:
                data = file.read(BLOCK_BYTES)
                num_read += len(data)
            try:
                block = decoder.decompress(data, BLOCK_BYTES)
            except zlib.error:
                self._gzip_note = "The gzip data is damaged; what comes after is left out."
                return
            num_out += len(block)
            if num_out > max(FREE_BYTES, MAX_EXPANSION * num_read):
                self._gzip_note = (
                    f"The gzip data expands to more than {MAX_EXPANSION} times its size, which no "
                    "log does; what comes after is left out."
                )
                return
            if block:
                yield block
            elif not data:
                self._gzip_note = "The gzip data is cut off; everything before the cut was read."
                return
            data = decoder.unconsumed_tail
            if decoder.eof:
                data = decoder.unused_data or file.read(BLOCK_BYTES)
                num_read += 0 if decoder.unused_data else len(data)
                if not data.startswith(GZIP_MARK):
                    return  # the end, or the padding that some tools append
                decoder = zlib.decompressobj(wbits=31)


def read_head(path: Path, size: int) -> tuple[bytes, bool]:
    """The first bytes of the content of a file, and whether the file is gzip."""
    with path.open("rb") as file:
        data = file.read(size)
    if not data.startswith(GZIP_MARK):
        return data, False
    try:
        return zlib.decompressobj(wbits=31).decompress(data, size), True
    except zlib.error:
        return b"", True


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block
