"""JournalWriter: takes records from the training loop and never makes it wait."""

import os
import time
import weakref
from collections.abc import Callable, Mapping
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from trimtab.core.block import NO_POSITION
from trimtab.core.config import JournalConfig
from trimtab.core.errors import JournalError
from trimtab.core.jsonable import to_jsonable
from trimtab.core.signals import Quality
from trimtab.journal.directory import RunDirectory
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.format.header import MAX_ROWS
from trimtab.journal.format.lines import Entry
from trimtab.journal.read.opening import open_parts
from trimtab.journal.read.story import RESERVED
from trimtab.journal.write.intake import Intake
from trimtab.journal.write.lock import JournalLock
from trimtab.journal.write.openlog import OpenLog
from trimtab.journal.write.packing import Forms
from trimtab.journal.write.sealing import Sealer

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
"""Seconds between two tries at a disk that refuses: doubled from the first to the longest."""

_Result = TypeVar("_Result")


class _GaveUp(Exception):
    """The disk refused until the time for closing was over."""


class JournalWriter:
    """Appends to the journal of a run; the disk is the business of a thread of its own.

    Whatever the disk does, `append`, `event` and `quality` return at once and do not raise for it.
    They may be called from any thread. In a forked child they do nothing but count.
    """

    def __init__(self, run: RunDirectory, config: JournalConfig | None = None) -> None:
        """Begin a journal, or go on after its last tick.

        Raises JournalError if another process writes it or the folder cannot be made.
        """
        self._config = config or JournalConfig()
        self._files = JournalFiles(run.journal)
        self._segment_records = min(self._config.segment_records, MAX_ROWS)
        self._error: Exception | None = None
        self._log: OpenLog | None = None
        self._closed = False
        self._deadline = float("inf")
        try:
            run.journal.mkdir(parents=True, exist_ok=True)
            self._lock = JournalLock(run.home / "journal.lock")
        except OSError as error:
            raise JournalError(f"{run.home} cannot be written: {error}; check the path") from error
        try:
            last_tick = self._look_back(run)
        except BaseException:
            self._lock.release()
            raise
        self._forms = Forms()
        self._intake = Intake(self._config.queue_records, last_tick + 1, self._forms)
        self._sealer = Sealer(self._files)
        self._thread = Thread(target=self._run, name="trimtab-journal", daemon=True)
        self._thread.start()
        _living.add(self)

    @property
    def dropped(self) -> int:
        """How many records fell out of the full queue, or came after the end."""
        return self._intake.dropped

    @property
    def error(self) -> Exception | None:
        """What last went wrong between here and the disk; None if nothing did."""
        return self._error or self._sealer.error

    def append(
        self,
        step: int,
        signals: Mapping[str, float],
        attempt: int = 0,
        data_position: int = NO_POSITION,
    ) -> int:
        """Append one record and give it the next tick, which is returned."""
        return self._intake.record(step, signals, attempt, data_position)

    def event(self, kind: str, step: int, **facts: Any) -> None:
        """Note something that happened before the next record; the facts go in JSON's terms."""
        if kind.startswith(RESERVED):
            raise JournalError(f"events named {RESERVED}... are the journal's own, got {kind!r}")
        self._intake.event(kind, step, to_jsonable(facts))

    def quality(self, name: str, quality: Quality) -> None:
        """Say how far a signal can be trusted; the worst that was said stands."""
        if quality < self._qualities.get(name, Quality.RAW):
            self._qualities[name] = quality
            self._intake.note({"kind": "quality", "signal": name, "quality": quality.label})

    def close(self, how: str = "closed") -> None:
        """Write what waits and seal; gives up on a disk that does not answer in time.

        Records that come afterwards are counted as dropped.
        """
        if self._closed:
            return
        self._closed = True
        self._deadline = time.monotonic() + self._config.close_seconds
        self._intake.end(how)
        self._thread.join(self._config.close_seconds)
        if self._thread.is_alive():
            self._error = JournalError(
                f"{self._files.folder} was not closed: the disk did not answer for "
                f"{self._config.close_seconds:g} s; what was written so far can be read"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close("closed" if kind is None else f"raised {kind.__name__}")

    def _look_back(self, run: RunDirectory) -> int:
        """What an earlier writer left: qualities, the next number of a file, the last tick."""
        parts, story = open_parts(run)
        indices = self._files.indices()
        self._qualities = dict(story.qualities)
        self._next_index = indices[-1] + 1 if indices else 0
        drops = [last for _, last in story.drops]
        return max([part.last_tick for part in parts] + drops, default=-1)

    # From here on: the thread.

    def _run(self) -> None:
        try:
            self._patiently(self._settle_logs)
            while not self._intake.is_over():
                self._write(self._intake.take())
                self._intake.rest(self._config.flush_seconds)
            self._finish_log()
            self._patiently(self._settle_logs)
        except _GaveUp:
            pass  # what the disk said is remembered
        except Exception as error:
            self._error = error
        finally:
            self._intake.stop()
            if self._log is not None:
                self._log.close()
            self._sealer.close()
            self._lock.release()

    def _write(self, items: list[bytes | Entry]) -> None:
        for item in items:
            log = self._log or self._begin_log()
            log.add(item)
            if len(log.rows) >= self._segment_records:
                self._finish_log()
        if self._log is not None:
            self._patiently(self._log.flush)

    def _begin_log(self) -> OpenLog:
        self._log = self._patiently(self._open_log)
        return self._log

    def _open_log(self) -> OpenLog:
        self._files.folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                log = OpenLog(self._files, self._next_index, dict(self._qualities), self._forms)
            except FileExistsError:  # never write into a file that we did not begin
                self._next_index += 1
            else:
                self._next_index += 1
                return log

    def _finish_log(self) -> None:
        """Complete the open file and have it sealed; only then may the next one be begun."""
        if self._log is not None:
            self._patiently(self._log.flush)
            self._log.close()
            self._sealer.seal(self._log)
            self._log = None

    def _settle_logs(self) -> None:
        """Have sealed what an earlier writer, or an earlier failure to seal, left open."""
        for index in self._files.indices():
            if self._files.log(index).exists():
                self._sealer.settle(index)

    def _patiently(self, attempt: Callable[[], _Result]) -> _Result:
        """Try until the disk lets us; meanwhile the queue fills, and what falls out is counted."""
        wait = _FIRST_WAIT
        while True:
            try:
                return attempt()
            except OSError as error:
                self._error = error
                if time.monotonic() + wait >= self._deadline:
                    raise _GaveUp from error
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    def _forget(self) -> None:
        """In a forked child: there is no thread here, and the lock is the parent's."""
        self._closed = True
        self._intake.forget()
        self._lock.release()


_living: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A loader's worker that outlives a killed trainer must not keep its lock.
    for writer in _living:
        writer._forget()


os.register_at_fork(after_in_child=_forget_in_child)
