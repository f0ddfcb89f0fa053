"""AllowedFolders: every path that an agent names leads into them, or nowhere."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from trimtab.core.errors import ConfigError
from trimtab.core.text import printable
from trimtab.journal import RunDirectory
from trimtab.journal.files import open_regular
from trimtab.observe.server.hub import find_run_folders

MAX_PATH_CHARS = 1000
MAX_LOG_BYTES = 2**29
"""A larger file is not read for an agent. Chosen: a million lines of a console have 200 MB."""

MAX_NAMES = 2000
"""Names in a folder that are looked at for a list."""

_LOG_SUFFIXES = (".csv", ".jsonl", ".json", ".log", ".txt", ".out", ".wandb", ".db")


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A log that is open for reading: its bytes are all that a reader can get."""

    name: str
    file: FileIO

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        return self.file.read(size) or b""


class AllowedFolders:
    """The folders that may be read, with what is inside them after every link is resolved."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """Raises ConfigError if there is none, or if one is no folder."""
        if not roots:
            raise ConfigError("name at least one folder; for example: trimtab mcp runs")
        for root in roots:
            if not root.is_dir():
                raise ConfigError(f"not a folder: {root}")
        self.roots = tuple(dict.fromkeys(root.resolve() for root in roots))

    def path(self, given: str) -> Path:
        """Return the path without links that a text means; raises ConfigError if it leads out.

        A relative path is below one of the folders, the first in which it exists. What is not there
        and what may not be read give the same error, so that nothing is learnt about the rest of
        the disk.
        """
        refusal = ConfigError(
            f"not in the folders of this server: {printable(given[:100])}; the tool runs lists "
            "what is in them"
        )
        if not given or len(given) > MAX_PATH_CHARS or "\0" in given:
            raise refusal
        for root in self.roots:
            try:
                found = (root / given).resolve(strict=True)
            except (OSError, RuntimeError, ValueError):  # not there, a circle of links, no path
                continue
            if any(found.is_relative_to(one) for one in self.roots):
                return found
        raise refusal

    def name(self, path: Path) -> str:
        """Return a short text that means a path."""
        first = self.roots[0]
        return str(path.relative_to(first) if path.is_relative_to(first) else path)

    def run_directory(self, path: Path) -> RunDirectory | None:
        """Return the run directory at an allowed path; its own links are never followed."""
        found = RunDirectory.find(path)
        is_inside = found and any(found.root.resolve().is_relative_to(one) for one in self.roots)
        return found if is_inside else None

    @contextmanager
    def opened(self, path: Path) -> Iterator[OpenLog]:
        """Open a regular file at an allowed path; raises ConfigError for anything else.

        Nothing beside it can be read through it: a format whose reader looks around sees a copy.
        """
        try:
            file = open_regular(path)
        except OSError as error:
            raise ConfigError(
                f"neither a run directory nor a file that can be read: {self.name(path)}"
            ) from error
        with file:
            # Between the check and the opening a folder may have become a link.
            if path.resolve() != path or os.fstat(file.fileno()).st_size > MAX_LOG_BYTES:
                raise ConfigError(f"a link, or over {MAX_LOG_BYTES:,} bytes: {self.name(path)}")
            yield OpenLog(self.name(path), file)

    def runs(self, folder: Path) -> list[Path]:
        """Return the run directories at or below an allowed folder; links are not followed."""
        return [path.resolve() for _, path in find_run_folders([folder])][:MAX_NAMES]

    def logs(self, folder: Path) -> list[Path]:
        """Return the files in an allowed folder that may be logs."""
        files = (path for path in folder.iterdir() if path.suffix.lower() in _LOG_SUFFIXES)
        return [path for path in files if path.is_file() and not path.is_symlink()][:MAX_NAMES]
