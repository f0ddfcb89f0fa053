"""ObservedRun: a run, its observer and its process, until the run is over, and again if it goes on.

An observer needs memory and open files. It is closed once the run is over and everything is
written, and a new one begins when the journal or the notes have grown.
"""

from trimtab.core.sink import RUN_STATUS, RunStatus, parse_status
from trimtab.diagnosis import run_config
from trimtab.journal import RunDirectory
from trimtab.journal.news import INCIDENT, REPORT_WRITTEN, read_news
from trimtab.observe.liveness import Liveness, Standing, TrainingProcess, WriterProcess
from trimtab.observe.run_observer import Listener, RunObserver, journal_size


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
        # A training process that has just begun has not written anything yet.
        self._may_be_written = process is None
        if stall_seconds is None:
            stall_seconds = run_config(run).ship.stall_seconds
        self._liveness = Liveness(run, self._process, stall_seconds)
        self._seen_size = -1

    def poll(self) -> bool:
        """Judge what is new; return whether anything is, or the run stands differently."""
        size, before = journal_size(self.run), self.standing
        if self.observer is None:
            if self._seen_size < 0 and self._may_be_written:
                self._find_written(size)
            if size == self._seen_size:
                return self.standing != before
            self.observer = RunObserver(self.run, self._listener)
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

    def close(self) -> None:
        if self.observer is not None:
            self.observer.close()
            self.observer = None

    def _find_written(self, size: int) -> None:
        """Begin only when the run goes on, if an earlier observer has written everything."""
        news = [event for event in read_news(self.run) if event.kind != INCIDENT][-2:]
        if [event.kind for event in news] != [RUN_STATUS, REPORT_WRITTEN]:
            return
        said, written = news
        status = parse_status(said.facts.get("status"))
        if status.is_over and written.facts.get("bytes") == size:
            self.standing = Standing(status=status, how=str(said.facts.get("how")))
            self._seen_size = size


def observe_once(run: RunDirectory) -> None:
    """Judge what the journal has, write it, and end."""
    process = WriterProcess(run)
    liveness = Liveness(run, process, run_config(run).ship.stall_seconds)
    observer = RunObserver(run)
    was_gone = process.is_gone()
    observer.poll()
    standing = liveness.standing(observer.totals, observer.ended, was_gone=was_gone)
    observer.note_standing(standing)
    if standing.status is RunStatus.RUNNING:  # as far as is known: it may be of another machine
        observer.finish()
        observer.write_report()
    observer.close()
