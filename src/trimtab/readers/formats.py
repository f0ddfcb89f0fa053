"""What defines a log format: one file per format, with one `Format` in it.

A new format takes that file and one line in a registry: `text/__init__.py`,
`trackers/__init__.py` or `registry.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one log format is recognised and read."""

    name: str
    """As given to `--format`."""
    description: str
    """What a file of this format is, in a few words."""
    suffixes: tuple[str, ...]
    """Tried only if no format is recognised by its content."""
    recognises: Callable[[bytes], bool]
    """Whether a file that begins with these bytes is of this format."""
    read: Callable[[Path, Progress], Table]
    """Read the file; raises UnreadableLog if it has no rows, and passes OSError on."""
    binary: bool = False
    """Whether it begins with bytes that no text and no other format begins with."""
    logs_among: Callable[[Sequence[Path]], Sequence[Path]] | None = None
    """Which of the files under a folder, or the folders around them, are logs of this format, the
    one to read first; None if such logs are only given by name."""
    read_run: Callable[[Path, str, Progress], Table] | None = None
    """Read one run of a file that holds several, by its name or id."""
