"""Readers from outside this package: passed to `read_log`, or installed as plug-ins.

Whatever such a reader raises becomes a note, and the reader is left out.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from trimtab.core.errors import ConfigError, LogError, NoUsableLoss, UnreadableLog
from trimtab.core.plugins import READERS, describe_error, load_plugins
from trimtab.core.reader import Reader
from trimtab.core.run import Run
from trimtab.core.signals import LOSS
from trimtab.readers.registry import FORMATS


class OutsideReaders:
    """The readers from outside, and notes on those that failed.

    Installed plug-ins are loaded only when they are needed: a log that trimtab recognises itself
    never runs their code.
    """

    def __init__(self, given: Sequence[Reader]) -> None:
        for reader in given:
            if not isinstance(reader, Reader):
                raise ConfigError(
                    f"{reader!r} is not a log reader; it needs name, description, recognises and "
                    "read (trimtab.core.reader.Reader)"
                )
        self.given = tuple(given)
        self.notes: list[str] = []

    @cached_property
    def installed(self) -> tuple[Reader, ...]:
        """The plug-ins that loaded; one whose name is taken is left out."""
        made, failures = load_plugins(
            READERS,
            Reader,  # type: ignore[type-abstract]
            needs="name, description, recognises or read",
            taken=FORMATS,
        )
        self.notes += failures
        return tuple(made.values())

    def named(self, format: str) -> Reader | None:
        """The reader of a format: one that was passed, else a plug-in."""
        for reader in self.given:
            if reader.name == format:
                return reader
        if format in FORMATS:
            return None
        return next((reader for reader in self.installed if reader.name == format), None)

    def try_all(self, readers: Sequence[Reader], path: Path, head: bytes) -> Run | None:
        """Read the log with the first reader that recognises it and does not fail."""
        for reader in readers:
            try:
                if reader.recognises(path, head):
                    return self._read(reader, path)
            except Exception as error:
                self.notes.append(
                    f"The reader {reader.name!r} failed and is left out: {describe_error(error)}."
                )
        return None

    def read(self, reader: Reader, path: Path) -> Run:
        """Read the log with one reader, asked for by name."""
        try:
            return self._read(reader, path)
        except (LogError, OSError):
            raise
        except Exception as error:
            raise UnreadableLog(
                f"{path}: the reader {reader.name!r} failed ({describe_error(error)}); report it "
                "to its author, or leave out the format"
            ) from error

    def _read(self, reader: Reader, path: Path) -> Run:
        run = reader.read(path)
        if not isinstance(run, Run):
            raise TypeError(f"read returned {type(run).__name__}, not trimtab.core.run.Run")
        if not run.block.column(LOSS).recorded:
            found = ", ".join(run.block.columns) or "none"
            raise NoUsableLoss(
                f"{path}: the reader {reader.name!r} found no training loss (signals: {found}); "
                f"it has to be named {LOSS!r}"
            )
        return replace(run, format=reader.name, path=run.path or path)


def log_formats(readers: Sequence[Reader] = ()) -> list[str]:
    """The names of all log formats: trimtab's, those of these readers and those of plug-ins."""
    outside = OutsideReaders(readers)
    others = [reader.name for reader in (*outside.given, *outside.installed)]
    return sorted({*FORMATS, *others})
