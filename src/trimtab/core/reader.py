"""Reader: reads one log format. An extension point.

Trimtab's own formats (`trimtab.readers`) and those of other packages follow the same protocol. A
reader is passed to `read_log(..., readers=[...])` or `diagnose(..., readers=[...])`, or offered by
an installed package as an entry point of the group `trimtab.readers`.
"""

from pathlib import Path
from typing import Protocol, runtime_checkable

from trimtab.core.run import Run


@runtime_checkable
class Reader(Protocol):
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
        """Return whether the log has this format.

        `head` is the first MiB of the file (of its content, if it is gzip), and empty if `path`
        is a folder.
        """
        ...

    def read(self, path: Path) -> Run:
        """Read the log; raise `UnreadableLog` if it has no records."""
        ...
