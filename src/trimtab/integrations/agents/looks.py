"""RunLooks: the report of a run as of now, judged again only where something has been added.

run directory   an observer that writes nothing follows its journal, beside any other
log             read again when its size or its time has changed
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

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


class RunLooks:
    """Looks at runs, and remembers what it saw."""

    def __init__(self, folders: AllowedFolders) -> None:
        self._folders = folders
        self._watched: OrderedDict[Path, _RunDirectory | _Log] = OrderedDict()

    def look(self, given: str) -> Look:
        """Return a run as it stands; raises a TrimtabError if it may not or cannot be read."""
        path = self._folders.path(given)
        directory = self._folders.run_directory(path)
        key = path if directory is None else directory.root
        watched = self._watched.pop(key, None)
        if watched is None and directory is not None:
            watched = _RunDirectory(directory)
        elif watched is None:
            watched = _Log(self._folders, path)
        found = watched.look()
        self._watched[key] = watched
        while len(self._watched) > MAX_RUNS:
            self._watched.popitem(last=False)[1].close()
        return found


class _RunDirectory:
    """A run directory, followed by an observer of its own that writes nothing."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
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

    def __init__(self, folders: AllowedFolders, path: Path) -> None:
        self._folders = folders
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._report: RunReport | None = None

    def look(self) -> Look:
        with self._folders.opened(self._path) as file:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._report is None or seen != self._seen:
                self._report, self._seen = diagnose(file), seen
        return Look(self._report, "")

    def close(self) -> None:
        pass
