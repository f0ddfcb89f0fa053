"""ObservedRun: a run, its observer and its process, until the run is over, and again if it goes on.

An observer needs memory and open files. It is closed once the run is over and everything is
written, and a new one begins when the journal or the notes have grown.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from trimtab.core.sink import RunStatus
from trimtab.diagnosis import run_config
from trimtab.journal import RunDirectory
from trimtab.journal.news import OBSERVER_FILE
from trimtab.observe.liveness import Liveness, Standing, TrainingProcess, WriterProcess
from trimtab.observe.run_observer import Listener, RunObserver


class ObservedRun:
    """Judges a run as it grows, and says how it stands."""

    def __init__(
        self,
        run: RunDirectory,
        listener: Listener | None = None,
        *,
        process: TrainingProcess | None = None,
        stall_seconds: float | None = None,
    ) -> None:
        """Without `stall_seconds`, those of the run's settings."""
        self.run = run
        self.standing = Standing(status=RunStatus.RUNNING, how="")
        """How the run stood at the last look."""
        self.observer: RunObserver | None = None
        """The observer; None while nothing more can come."""
        self._listener = listener
        self._process = process or WriterProcess(run)
        if stall_seconds is None:
            stall_seconds = run_config(run).ship.stall_seconds
        self._liveness = Liveness(run, self._process, stall_seconds)
        self._seen_size = -1

    def poll(self) -> bool:
        """Judge what is new; return whether anything is."""
        size = self._size()
        if self.observer is None:
            if size == self._seen_size:
                return False
            self.observer = RunObserver(self.run, self._listener)
        before = self.standing
        was_gone = self._process.is_gone()
        found = self.observer.poll()
        self.standing = self._liveness.standing(
            self.observer.totals, self.observer.ended, was_gone=was_gone
        )
        self.observer.note_standing(self.standing)
        if self.standing.status.is_over:
            self.close()
            self._seen_size = size
        return found or self.standing != before

    def rest(self, standing: Standing) -> None:
        """Begin only when the run goes on: an earlier observer has written everything."""
        # Unless somebody has noted something since.
        if _changed_at(self.run.notes) < _changed_at(self.run.home / OBSERVER_FILE):
            self.standing, self._seen_size = standing, self._size()

    def close(self) -> None:
        """Give back what the observer holds."""
        if self.observer is not None:
            self.observer.close()
            self.observer = None

    def _size(self) -> int:
        """Return the bytes of the journal and the notes; each new file counts as one more."""
        return sum(1 + size for size in self._file_sizes())

    def _file_sizes(self) -> Iterator[int]:
        for folder, names in ((self.run.home, {self.run.notes.name}), (self.run.journal, None)):
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if names is None or entry.name in names:
                            yield entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue


def observe_once(run: RunDirectory) -> None:
    """Judge what the journal has, and end."""
    observer = RunObserver(run)
    observer.poll()
    process = WriterProcess(run)
    if process.has_ended(observer.ended, was_gone=True) or process.is_gone():
        liveness = Liveness(run, process, stall_seconds=float("inf"))
        observer.note_standing(
            liveness.standing(observer.totals, observer.ended, was_gone=process.is_gone())
        )
    else:
        observer.judge_checkpoints(now=True)
    observer.close()


def _changed_at(path: Path) -> float:
    """Return the time of the last change of a file; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
