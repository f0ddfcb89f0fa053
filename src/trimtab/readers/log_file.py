"""Reads the bytes and the lines of a log file, whatever it holds.

gzip is decompressed, UTF-16 becomes UTF-8.

Memory is bounded by a block: not by the file, not by what a gzip file may expand to, and not by a
line that never ends.
"""

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from trimtab.core.text import count_sentence

Progress = Callable[[int, int], None]
"""Called now and then with the bytes done and the bytes in total."""

BLOCK_BYTES = 1 << 20
"""Bytes per block: some ten thousand rows, enough for whole-column conversion to pay off."""

LINE_BYTES = 4 << 20
"""A longer line is left out: the longest rows of real logs (histograms) stay far under 1 MiB."""

GZIP_MARK = b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

MAX_EXPANSION = 100
"""How many times its size a gzip file may expand to. Source: the public text logs that the tests
read compress 4 to 10 times; a decompression bomb reaches 1,000."""

FREE_BYTES = 1 << 28
"""A gzip file may always expand to this many bytes."""


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


class LogFile:
    """A text log as blocks of bytes."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._nul_bytes = 0
        self._gzip_note = ""

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks, without NUL bytes."""
        with self._path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            is_gzip = file.peek(2)[:2] == GZIP_MARK
            done = 0
            blocks = _plain(file)
            if is_gzip:
                blocks = self._bounded(self._gzip_blocks(file), file)
            for block in _as_utf8(blocks):
                text = block.replace(b"\0", b"")
                self._nul_bytes += len(block) - len(text)
                yield text
                # The log of a run that is still going is longer now than it was at the start.
                done = file.tell() if is_gzip else done + len(block)
                self._progress(done, max(done, total))

    def read(self) -> bytes:
        return b"".join(self.blocks())

    @property
    def notes(self) -> list[str]:
        """What had to be done to the file to read it."""
        notes = [self._gzip_note] if self._gzip_note else []
        if self._nul_bytes:
            notes.append(
                count_sentence(
                    self._nul_bytes, "NUL byte{s}, as a crash leaves them, {is} left out"
                )
            )
        return notes

    def _gzip_blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield what the members of a gzip file hold, as far as it is sound."""
        reader = gzip.GzipFile(fileobj=file)
        try:
            while block := reader.read1(BLOCK_BYTES):
                yield block
        except EOFError:
            self._gzip_note = "The gzip data is cut off; everything before the cut was read."
        except (OSError, zlib.error):
            self._gzip_note = "The gzip data is damaged; what comes after is left out."

    def _bounded(self, blocks: Iterator[bytes], file: BinaryIO) -> Iterator[bytes]:
        """Yield blocks until they are more than any log expands to."""
        num_out = 0
        for block in blocks:
            num_out += len(block)
            if num_out > max(FREE_BYTES, MAX_EXPANSION * file.tell()):
                self._gzip_note = (
                    f"The packed data expands to more than {MAX_EXPANSION} times its size, which "
                    "no log does; what comes after is left out."
                )
                return
            yield block


class LineFile:
    """A text log as chunks of lines without their ends; any line end is accepted."""

    def __init__(self, path: Path, progress: Progress = no_progress) -> None:
        self._file = LogFile(path, progress)
        self._long_lines = 0
        self.unfinished = False
        """Whether the last chunk is one line without a line end, which may be half of one."""

    def chunks(self) -> Iterator[list[str]]:
        """Yield the lines, some thousands at a time; bytes that are not UTF-8 become U+FFFD."""
        rest, skipping, first = b"", False, True
        for block in self._file.blocks():
            data = rest + (_from_line_end(block) if skipping else block)
            skipping = skipping and not data
            # A carriage return at the very end may be the first half of a line end.
            end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            if end:
                yield _decode_lines(data[:end], first)
                first = False
            rest = data[end:]
            if len(rest) > LINE_BYTES:
                self._long_lines += 1
                rest, skipping = b"", True
        if rest:
            self.unfinished = not rest.endswith(b"\r")
            yield _decode_lines(rest.removesuffix(b"\r") + b"\n", first)

    @property
    def notes(self) -> list[str]:
        notes = self._file.notes
        if self._long_lines:
            limit = LINE_BYTES >> 20
            notes.append(
                count_sentence(
                    self._long_lines, f"line{{s}} of more than {limit} MiB {{is}} left out"
                )
            )
        return notes


def read_head(path: Path, size: int) -> tuple[bytes, bool]:
    """Return the first bytes of the content of a file, and whether the file is gzip."""
    with path.open("rb") as file:
        data = file.read(size)
    if not data.startswith(GZIP_MARK):
        return b"".join(_as_utf8(iter([data]))), False
    try:
        return zlib.decompressobj(wbits=31).decompress(data, size), True
    except zlib.error:
        return b"", True


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks in UTF-8 where a mark says that they are UTF-16, as PowerShell writes."""
    first = next(blocks, b"")
    if first[:2] not in _UTF16_MARKS:
        yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode("utf-8", "replace")


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def _from_line_end(block: bytes) -> bytes:
    """Return the block from its first line end on: the skipped line leaves an empty one."""
    match = re.search(rb"[\r\n]", block)
    return block[match.start() :] if match else b""


def _decode_lines(data: bytes, first: bool) -> list[str]:
    text = data.decode("utf-8", "replace")
    if first:
        text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Not splitlines(): it also splits at form feeds and other characters that a cell may contain.
    lines = text.split("\n")
    lines.pop()
    return lines
