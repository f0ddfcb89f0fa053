"""The lines of a text file in chunks, whatever the file holds.

Memory stays bounded: by the chunk, not by the file, and not by a line that never ends.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

Progress = Callable[[int, int], None]
"""Called now and then with the bytes done and the bytes in all."""

BLOCK_BYTES = 1 << 20
"""Bytes read at once: some ten thousand rows, enough for whole-column conversion to pay."""

LINE_BYTES = 4 << 20
"""A longer line is left out: the longest rows of real logs (histograms) stay far under 1 MiB."""


class LineFile:
    """A text file as chunks of lines without their ends; any line end will do."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._nul_bytes = 0
        self._long_lines = 0
        self.unfinished = False
        """Whether the chunk that was given out last is one line without a line end."""

    def chunks(self) -> Iterator[list[str]]:
        """The lines, some thousands at a time; bytes that are not UTF-8 become U+FFFD."""
        with self._path.open("rb") as file:
            rest, skipping, first = b"", False, True
            for block in self._blocks(file):
                data = rest + (_from_line_end(block) if skipping else block)
                skipping = skipping and not data
                end = _end_of_lines(data)
                if end:
                    yield _lines(data[:end], first)
                    first = False
                rest = data[end:]
                if len(rest) > LINE_BYTES:
                    self._long_lines += 1
                    rest, skipping = b"", True
            if rest:
                self.unfinished = not rest.endswith(b"\r")
                yield _lines(rest.removesuffix(b"\r") + b"\n", first)

    @property
    def notes(self) -> list[str]:
        """What had to be done to the file to read it."""
        notes = []
        if self._nul_bytes:
            notes.append(f"NUL bytes left out, as a crash leaves them behind: {self._nul_bytes}.")
        if self._long_lines:
            limit = LINE_BYTES >> 20
            notes.append(f"Lines of more than {limit} MiB, left out: {self._long_lines}.")
        return notes

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        total = os.fstat(file.fileno()).st_size
        done = 0
        while block := file.read(BLOCK_BYTES):
            done += len(block)
            text = block.replace(b"\0", b"")
            self._nul_bytes += len(block) - len(text)
            yield text
            # A run that is still going makes its log longer than it was at the start.
            self._progress(done, max(done, total))


def _end_of_lines(data: bytes) -> int:
    """Where the last whole line ends."""
    # A carriage return at the very end may be the first half of a line end.
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1


def _from_line_end(block: bytes) -> bytes:
    """The block from its first line end on, so that the line left out leaves an empty one."""
    match = re.search(rb"[\r\n]", block)
    return block[match.start() :] if match else b""


def _lines(data: bytes, first: bool) -> list[str]:
    text = data.decode("utf-8", "replace")
    if first:
        text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Not splitlines(): it also splits at form feeds and other marks that may stand in a cell.
    lines = text.split("\n")
    lines.pop()
    return lines
