"""The lines of a text log in chunks, whatever the file holds.

Memory is bounded by the chunk: not by the file, and not by a line that never ends.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from trimtab.readers.log_file import LogFile, Progress

LINE_BYTES = 4 << 20
"""A longer line is left out: the longest rows of real logs (histograms) stay far under 1 MiB."""


class LineFile:
    """A text log as chunks of lines without their ends; any line end is accepted."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._file = LogFile(path, progress)
        self._long_lines = 0
        self.unfinished = False
        """Whether the last chunk is one line without a line end."""

    def chunks(self) -> Iterator[list[str]]:
        """The lines, some thousands at a time; bytes that are not UTF-8 become U+FFFD."""
        rest, skipping, first = b"", False, True
        for block in self._file.blocks():
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
        notes = self._file.notes
        if self._long_lines:
            limit = LINE_BYTES >> 20
            notes.append(f"Lines of more than {limit} MiB, left out: {self._long_lines}.")
        return notes


def _end_of_lines(data: bytes) -> int:
    """Where the last complete line ends."""
    # A carriage return at the very end may be the first half of a line end.
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1


def _from_line_end(block: bytes) -> bytes:
    """The block from its first line end on, so that the skipped line leaves an empty one."""
    match = re.search(rb"[\r\n]", block)
    return block[match.start() :] if match else b""


def _lines(data: bytes, first: bool) -> list[str]:
    text = data.decode("utf-8", "replace")
    if first:
        text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Not splitlines(): it also splits at form feeds and other characters that a cell may contain.
    lines = text.split("\n")
    lines.pop()
    return lines
