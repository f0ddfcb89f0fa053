"""The protocol of a log reader, so that other packages can teach trimtab their log formats.

A reader is passed to `read_log(..., readers=[...])`, or offered by an installed package as an
entry point of the group `trimtab.readers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from trimtab.core.block import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """What a reader returns."""

    block: Block
    """The records, under trimtab's signal names (`core/signals.py`)."""
    notes: tuple[str, ...] = ()
    """Everything that was left out, repaired, chosen or guessed, in plain sentences."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Signal to the name it has in the log, where they differ."""


@runtime_checkable
class LogReader(Protocol):
    """Reads one log format."""

    @property
    def name(self) -> str:
        """The name of the format, as given to `--format`."""
        ...

    @property
    def description(self) -> str:
        """What a log of this format is, in a few words; error messages list it."""
        ...

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the log has this format.

        `head` is the first MiB of the file (of its content, if it is gzip), and empty if `path`
        is a folder.
        """
        ...

    def read(self, path: Path) -> LogContent:
        """Read the log; raise `UnreadableLog` if it has no records."""
        ...
