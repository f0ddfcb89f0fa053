"""Which log in a folder is meant.

Every format says which of the files are its own (`Reader.logs_among`); here is where they are
listed, and where the choice is told.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.formats import LogFormat, Reader
from trimtab.readers.wording import listed, quoted

LEVELS = 5
"""How deep is looked: the run folders of MLflow lie four levels under a project, and their
metrics one or two further."""

MOST_FILES = 50_000
"""Files that are listed at most, the upper levels first: a folder with more is a data set, or a
whole disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderChoice:
    """The log that is read where a folder was given."""

    path: Path
    format: LogFormat
    notes: tuple[str, ...]


def choose_log(
    folder: Path, readers: Mapping[LogFormat, Reader], format: LogFormat | None
) -> FolderChoice:
    """The log in a folder; raises UnreadableLog if there is none."""
    files = list_files(folder)
    found: dict[LogFormat, Sequence[Path]] = {}
    for kind, reader in readers.items():
        if reader.logs_among is not None and format in (None, kind):
            logs = reader.logs_among(files)
            if logs:
                found[kind] = logs
    if not found:
        wanted = f"log of the format {format}" if format else "log of a known tracker"
        raise UnreadableLog(
            f"{folder} is a directory without a {wanted} ({len(files)} files were looked at); "
            "give the log file itself"
        )
    kind, (path, *others) = next(iter(found.items()))
    notes = []
    if path != folder:
        notes.append(f"Of the folder, {_name(path, folder)} is read.")
    if others:
        names = listed([str(other.relative_to(folder)) for other in others])
        notes.append(f"It is the newest of {len(others) + 1} such logs; not read: {names}.")
    rest = [f"{_name(logs[0], folder)} ({other})" for other, logs in found.items() if other != kind]
    if rest:
        notes.append(f"There are logs of other formats too, not read: {', '.join(rest)}.")
    return FolderChoice(path=path, format=kind, notes=tuple(notes))


def list_files(folder: Path) -> list[Path]:
    """The regular files under a folder, level by level and sorted; hidden folders are left out."""
    files: list[Path] = []
    level = [folder]
    for _ in range(LEVELS + 1):
        below: list[Path] = []
        for place in level:
            names, folders = _entries(place)
            files += [place / name for name in names]
            below += [place / name for name in folders]
            if len(files) >= MOST_FILES:
                return files[:MOST_FILES]
        level = below
    return files


def newest_first(paths: Sequence[Path]) -> list[Path]:
    """The paths by the time of their last change, the newest first."""
    return sorted(paths, key=lambda path: (_modified(path), path.name), reverse=True)


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the files and of the folders in a folder; none if it cannot be read."""
    names: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # Not through links: a link to a folder above would never end.
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        folders.append(entry.name)
                elif entry.is_file():
                    names.append(entry.name)
    except OSError:
        return [], []
    return sorted(names), sorted(folders)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _name(path: Path, folder: Path) -> str:
    return quoted(str(path.relative_to(folder)))
