"""Read a log of any known format. Nothing in a log is ever executed or unpickled."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from trimtab.core.errors import ConfigError, LogError, UnreadableLog
from trimtab.core.reader import Reader
from trimtab.core.run import Run
from trimtab.readers.folders import Choice, choose_log, no_log_in
from trimtab.readers.formats import no_progress
from trimtab.readers.log_file import Progress
from trimtab.readers.outside import OutsideReaders, log_formats
from trimtab.readers.recognise import by_content, by_suffix, load_head
from trimtab.readers.registry import FORMATS


def read_log(
    path: str | PathLike[str],
    *,
    format: str | None = None,
    readers: Sequence[Reader] = (),
    progress: Progress | None = None,
) -> Run:
    """Read a training log.

    The format is the one given by name, else the first that recognises the log: `readers`,
    trimtab's own formats, then installed plug-ins (entry points of the group `trimtab.readers`).
    In a folder, the newest log of a tracker is read. Where a file holds several runs, `file#run`
    names one of them, else the newest is read.
    `progress` is called now and then with the bytes done and the bytes in total. Raises
    UnreadableLog if there are no rows to read, NoUsableLoss if no column is a loss, ConfigError if
    there is no format of that name.
    """
    outside = OutsideReaders(readers)
    try:
        file, run = _split_run(Path(path))
        log = _Log(file, run, b"" if file.is_dir() else load_head(file), progress or no_progress)
        return _read_as(format, log, outside) if format else _read_recognised(log, outside)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableLog(f"{path} cannot be read: {reason}; check the file") from error


@dataclass(frozen=True, slots=True)
class _Log:
    """The log to read."""

    path: Path
    run: str | None
    head: bytes
    """Empty if the path is a folder."""
    progress: Progress


def _read_as(format: str, log: _Log, outside: OutsideReaders) -> Run:
    reader = outside.named(format)
    if reader is not None:
        return _from_outside(outside.read(reader, log.path), log, outside)
    if format not in FORMATS:
        names = ", ".join(log_formats(outside.given))
        raise ConfigError(f"unknown log format {format!r}; choose from {names}")
    if log.head:
        return _read(Choice(path=log.path, format=FORMATS[format]), log)
    choice = choose_log(log.path, [FORMATS[format]])
    if choice is None:
        raise no_log_in(log.path, format)
    return _read(choice, log)


def _read_recognised(log: _Log, outside: OutsideReaders) -> Run:
    found = outside.try_all(outside.given, log.path, log.head)
    choice = _choose(log) if found is None else None
    if found is None and choice is None:
        found = outside.try_all(outside.installed, log.path, log.head)
    if found is not None:
        return _from_outside(found, log, outside)
    try:
        return _read(choice or _choose_by_suffix(log, outside), log, outside.notes)
    except LogError as error:
        if not outside.notes:
            raise
        raise type(error)(" ".join([str(error), *outside.notes])) from error


def _choose(log: _Log) -> Choice | None:
    """What trimtab's formats recognise by content."""
    if not log.head:
        return choose_log(log.path, FORMATS.values())
    format = by_content(log.path, log.head)
    return Choice(path=log.path, format=format) if format else None


def _choose_by_suffix(log: _Log, outside: OutsideReaders) -> Choice:
    if not log.head:
        raise no_log_in(log.path)
    others = [reader.description for reader in (*outside.given, *outside.installed)]
    return Choice(path=log.path, format=by_suffix(log.path, log.head, others))


def _read(choice: Choice, log: _Log, failures: Sequence[str] = ()) -> Run:
    run = choice.format.read(choice.path, log.run, log.progress)
    return replace(run, notes=(*failures, *choice.notes, *run.notes), failures=tuple(failures))


def _from_outside(run: Run, log: _Log, outside: OutsideReaders) -> Run:
    if log.run is not None:
        raise UnreadableLog(
            f"{log.path} is read by {run.format!r}, which reads one run per file; "
            f"leave out {'#' + log.run!r}"
        )
    return replace(run, notes=(*outside.notes, *run.notes), failures=tuple(outside.notes))


def _split_run(path: Path) -> tuple[Path, str | None]:
    """The file and the run in it, where a path is a file, a # and the name of a run."""
    text = str(path)
    for index in [match.start() for match in re.finditer("#", text)]:
        if not path.exists() and Path(text[:index]).is_file():
            return Path(text[:index]), text[index + 1 :]
    return path, None
