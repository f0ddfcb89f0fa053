"""Text and file objects: copied into a file, which is read like any log."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.core.errors import LogError, MissingExtra, UnreadableLog
from trimtab.core.run import Run
from trimtab.source.cells import described

_BLOCK_BYTES = 1 << 16
_SUFFIX_CHARS = 16
"""No suffix by which a format is recognised is longer."""


def read_copy(blocks: Iterable[bytes], name: str, read: Callable[[Path], Run]) -> Run:
    """Read these bytes as a file; notes and errors name what they came from, not the copy."""
    with _copied(blocks, name) as file:
        run = read(file)
        notes = [note.replace(str(file), name) for note in run.notes]
        failures = [note.replace(str(file), name) for note in run.failures]
        return replace(run, path=None, notes=tuple(notes), failures=tuple(failures))


@contextmanager
def _copied(blocks: Iterable[bytes], name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        file = Path(folder) / f"log{_suffixes(name)}"
        with file.open("wb") as copy:
            for block in blocks:
                copy.write(block)
        try:
            yield file
        except (LogError, MissingExtra) as error:
            raise type(error)(str(error).replace(str(file), name)) from None


def file_blocks(file: Any, name: str) -> Iterator[bytes]:
    """Yield what a file object holds from its position on; the file stays open."""
    while True:
        try:
            block = file.read(_BLOCK_BYTES)
        except Exception as error:  # closed, open for writing, text that is none
            raise UnreadableLog(
                f"{name} cannot be read: {error}; open it with mode 'rb'"
            ) from error
        if not block:
            return
        if not isinstance(block, str | bytes):
            raise UnreadableLog(f"{name} gives {described(block)} when read, not text or bytes")
        yield block.encode("utf-8", "replace") if isinstance(block, str) else block


def file_name(file: Any) -> str:
    """Return what a file object calls itself; some know their number only."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name else type(file).__name__


def _suffixes(name: str) -> str:
    """Return how the name of a file ends, such as .csv.gz: some formats are recognised by it."""
    ends = "".join(Path(name).suffixes[-2:])
    return ends if len(ends) <= _SUFFIX_CHARS and ends.replace(".", "").isalnum() else ""
