"""Which log in a folder is meant.

Each format knows which files are its logs (`Format.logs_among`); this file lists the files and
notes which log was chosen.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import AnyStr

from trimtab.core.errors import UnreadableLog
from trimtab.readers.cells import quoted, quoted_names
from trimtab.readers.formats import Format

MAX_LEVELS = 5
"""How deep the search goes: MLflow's run folders are four levels under a project, and their metrics
one or two further."""

MAX_FILES = 50_000
"""Files listed at most, the upper levels first: a folder with more is a data set or a whole
disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The log to read, and its format."""

    path: Path
    format: Format
    notes: tuple[str, ...] = ()
    """What else could have been read."""


def choose_log(folder: Path, formats: Iterable[Format]) -> Choice | None:
    """Return the log in a folder; None if no format knows any of its files."""
    files = list_log_files(folder)
    found = {format: logs for format in formats if (logs := format.logs_among(files))}
    if not found:
        return None
    chosen, (path, *others) = next(iter(found.items()))
    notes = []
    if path != folder:
        notes.append(f"Of the folder, {_name(path, folder)} is read.")
    if others:
        names = quoted_names([str(other.relative_to(folder)) for other in others])
        notes.append(f"It is the newest of {len(others) + 1} such logs; not read: {names}.")
    rest = [
        f"{_name(logs[0], folder)} ({format.name})"
        for format, logs in found.items()
        if format is not chosen
    ]
    if rest:
        notes.append(f"There are logs of other formats too, not read: {', '.join(rest)}.")
    return Choice(path=path, format=chosen, notes=tuple(notes))


def no_log_in(folder: Path, format: str | None = None) -> UnreadableLog:
    wanted = f"log of the format {format}" if format else "log of a known tracker"
    return UnreadableLog(
        f"{folder} is a folder without a {wanted} ({len(list_log_files(folder))} files were "
        "checked); give the log file itself"
    )


def list_log_files(folder: Path) -> list[Path]:
    """List the files under a folder, level by level and sorted; not in hidden folders."""
    files: list[Path] = []
    level = [folder]
    for _ in range(MAX_LEVELS + 1):
        below: list[Path] = []
        for parent in level:
            # Not through links: a link to a folder above would never end.
            _, folders, names = next(os.walk(parent), ("", [], []))
            files += [path for name in sorted(names) if (path := parent / name).is_file()]
            inner = [parent / name for name in sorted(folders) if not name.startswith(".")]
            below += [path for path in inner if not path.is_symlink()]
            if len(files) >= MAX_FILES:
                return files[:MAX_FILES]
        level = below
    return files


def read_start(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def first_number(pattern: re.Pattern[AnyStr], text: AnyStr) -> int:
    """Return the number that a pattern finds first; -1 if it finds none."""
    found = pattern.search(text)
    return int(found[1]) if found else -1


def newest_first(paths: Sequence[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (_modified(path), path.name), reverse=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _name(path: Path, folder: Path) -> str:
    return quoted(str(path.relative_to(folder)))
