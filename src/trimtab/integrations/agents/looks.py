"""RunLooks: the report of a run as of now, judged again only where something has been added.

run directory   an observer that writes nothing follows its journal, beside any other
log             read again when its size or its time has changed
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trimtab.diagnosis import diagnose, run_config
from trimtab.integrations.agents.folders import AllowedFolders
from trimtab.journal import RunDirectory
from trimtab.observe.liveness import Liveness, WriterProcess
from trimtab.observe.run_observer import RunObserver, journal_size
from trimtab.report.run_report import RunReport

MAX_RUNS = 64
"""Runs that are remembered, the latest ones: each holds its records. Chosen: a large sweep."""


@dataclass(frozen=True, slots=True)
class Look:
    """A run as it stands."""

    report: RunReport
    status: str
    """How its process stands; empty for a log, which does not tell."""


class _Watched(Protocol):
    def look(self) -> Look: ...

    def close(self) -> None: ...


class RunLooks:
    """Looks at runs, and remembers what it saw."""

    def __init__(self, folders: AllowedFolders) -> None:
        self._folders = folders
        self._watched: OrderedDict[tuple[Path, str], _Watched] = OrderedDict()

    def look(self, given: str) -> Look:
        """Return a run as it stands; raises a TrimtabError if it may not or cannot be read.

        `file#name` is one of several runs in a file.
        """
        name = ""
        try:
            path = self._folders.path(given)
        except Exception:
            file, _, name = given.rpartition("#")
            if not file:
                raise
            path = self._folders.path(file)
        directory = None if name else self._folders.run_directory(path)
        key = (path if directory is None else directory.root, name)
        watched = self._watched.pop(key, None)
        if watched is None:
            watched = (
                _Log(self._folders, path, name)
                if directory is None
                else _RunDirectory(directory, self._folders.name(directory.root))
            )
        found = watched.look()
        self._watched[key] = watched
        while len(self._watched) > MAX_RUNS:
            self._watched.popitem(last=False)[1].close()
        return found

    def close(self) -> None:
        """Close every journal that is followed."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()


class _RunDirectory:
    """A run directory, followed by an observer of its own that writes nothing."""

    def __init__(self, run: RunDirectory, name: str) -> None:
        self._run = run
        self._name = name
        self._process = WriterProcess(run)
        self._liveness = Liveness(run, self._process, run_config(run).ship.stall_seconds)
        self._observer = RunObserver(run, writes=False)
        self._seen = -1
        self._report: RunReport | None = None

    def look(self) -> Look:
        size, was_gone = journal_size(self._run), self._process.is_gone()
        if self._report is None or size != self._seen:
            self._observer.poll()
            self._observer.finish()
            self._report, self._seen = self._observer.report(), size
        observer = self._observer
        standing = self._liveness.standing(observer.totals, observer.ended, was_gone=was_gone)
        return Look(self._report, standing.status.value)

    def close(self) -> None:
        self._observer.close()


class _Log:
    """A file of any format."""

    def __init__(self, folders: AllowedFolders, path: Path, run: str) -> None:
        self._folders = folders
        self._path = path
        self._run = run or None
        self._seen: tuple[int, ...] = ()
        self._report: RunReport | None = None

    def look(self) -> Look:
        with self._folders.opened(self._path) as file:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._report is None or seen != self._seen:
                self._report, self._seen = diagnose(file, run=self._run), seen
        return Look(self._report, "")

    def close(self) -> None:
        pass
