"""JournalWriter: accepts records from the training loop and never makes it wait.

Two threads of its own do the waiting. One appends lines to the open segment. The other seals
finished segments, because it waits for the disk (fsync) and new records must not: a log is
rewritten as columns, verified, and only then removed.
"""

import errno
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar

from trimtab.core.block import NO_POSITION, Block
from trimtab.core.errors import JournalError
from trimtab.core.jsonable import to_jsonable
from trimtab.core.signals import Quality
from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import MAX_INDEX, JournalFiles, JournalLock
from trimtab.journal.header import MAX_ROWS
from trimtab.journal.lines import SCHEMA, Entry, encode_line
from trimtab.journal.log_segment import LogSegment
from trimtab.journal.record_queue import Packed, PackedRows, RecordQueue
from trimtab.journal.sealed_segment import SealedSegment, write_segment
from trimtab.journal.segments import RESERVED, open_segment, open_segments

_MAX_IN_MEMORY = 2
"""Finished segments kept in memory until they are sealed; others are read back from disk."""


class OpenSegment:
    """The file that is being written, and its content in memory, to be sealed later.

    Lines are added, then flushed; what could not be written is kept.
    """

    def __init__(self, files: JournalFiles, index: int, qualities: Mapping[str, Quality]) -> None:
        self.index = index
        self.rows = PackedRows()
        self.entries: list[Entry] = []
        self._pending = bytearray()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(files.log(index), flags, 0o644)
        labels = {name: quality.label for name, quality in qualities.items()}
        self.add({"kind": "segment", "schema": SCHEMA, "index": index, "qualities": labels})

    def add(self, item: Packed | Entry) -> None:
        """Add a packed record or an entry; the next flush writes it."""
        if isinstance(item, tuple):
            layout, packed = item
            self.rows.add(layout, packed)
            self._pending += layout.line(packed)
        else:
            entry = item | {"note": len(self.entries)}
            self.entries.append(entry)
            self._pending += encode_line(entry)

    def flush(self) -> None:
        """Hand all lines to the operating system; raises OSError, after which it can be retried."""
        while self._pending:
            # A full disk accepts part of the bytes. The rest stays here and goes first next time,
            # so the file is complete again as soon as there is space.
            written = os.write(self._descriptor, self._pending)
            if not written:
                raise OSError(errno.EIO, "the disk took none of the bytes")
            del self._pending[:written]

    def close(self) -> None:
        os.close(self._descriptor)


def seal(files: JournalFiles, index: int, block: Block, entries: Sequence[Entry]) -> None:
    """Write a sealed segment, verify it, and remove the log."""
    draft, sealed = files.draft(index), files.sealed(index)
    try:
        write_segment(draft, block, entries)
        if not SealedSegment(draft).is_whole():
            raise JournalError(f"{draft} does not read back as it was written; check the disk")
        draft.replace(sealed)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(files)
    files.log(index).unlink(missing_ok=True)


def seal_leftover(files: JournalFiles, index: int) -> None:
    """Seal a log that an earlier writer left, as far as it can be read."""
    match open_segment(files, index, []):
        case [SealedSegment()]:  # the writer was killed between sealing and removing the log
            files.log(index).unlink(missing_ok=True)
        case [LogSegment() as log]:
            damages = [{"kind": "damage", "damage": damage.to_dict()} for damage in log.damage]
            seal(files, index, log.block, [*log.entries, *damages])
        case [LogSegment(damage=()) as log, _]:  # the sealed segment is damaged, the log is not
            seal(files, index, log.block, log.entries)


class Sealer:
    """Seals finished logs one by one; a log that cannot be sealed stays a log."""

    def __init__(self, files: JournalFiles) -> None:
        self.error: Exception | None = None
        self._files = files
        self._jobs: SimpleQueue[OpenSegment | int | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="trimtab-sealer", daemon=True)
        self._thread.start()

    def seal(self, log: OpenSegment) -> None:
        self._jobs.put(log if self._jobs.qsize() < _MAX_IN_MEMORY else log.index)

    def seal_leftover(self, index: int) -> None:
        self._jobs.put(index)

    def close(self) -> None:
        """Finish everything in the queue and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, OpenSegment):
                    seal(self._files, job.index, job.rows.block(), job.entries)
                else:
                    seal_leftover(self._files, job)
            except Exception as error:
                # Harmless: the log is complete and is read as it is. The next writer tries again.
                self.error = error


def _sync_folder(files: JournalFiles) -> None:
    descriptor = os.open(files.folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_MIN_WAIT, _MAX_WAIT = 0.05, 1.0
"""Seconds between two tries at a disk that fails: doubled from the first to the longest."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLimits:
    """How a journal is written: constants, which only tests of bad disks and full queues vary."""

    queue_records: int = 8192
    """Records that may wait for the disk before new ones are dropped and counted. At 10 steps a
    second this covers an outage of 13 minutes and takes a few MB."""
    segment_records: int = 16384
    """Records in one file before the next one is started and this one is sealed into columns."""
    flush_seconds: float = 0.1
    """The longest a record waits before it is handed to the operating system."""
    close_seconds: float = 10.0
    """The longest that closing waits for a disk that does not respond."""


MAX_TICK = 2**62
"""The last tick that a run is continued from: the ticks after it must fit into 64 bits."""

JOURNAL_LIMITS = JournalLimits()
"""What every run is journalled with."""


class _GaveUp(Exception):
    """The disk still failed when the time for closing was over."""


class JournalWriter:
    """Appends to the journal of a run; a separate thread writes to the disk.

    Whatever the disk does, `append`, `event` and `quality` return at once and do not raise for it.
    They may be called from any thread. In a forked child they only count.
    """

    def __init__(self, run: RunDirectory, limits: JournalLimits | None = None) -> None:
        """Start a journal, or continue it after its last tick.

        Raises JournalError if another process writes it or the folder cannot be created.
        """
        self._limits = limits or JOURNAL_LIMITS
        self._segment_records = min(self._limits.segment_records, MAX_ROWS)
        self._error: Exception | None = None
        self._log: OpenSegment | None = None
        self._closed = False
        self._deadline = float("inf")
        try:
            self._files = JournalFiles(run.journal)
            run.journal.mkdir(parents=True, exist_ok=True)
            self._lock = JournalLock(run.home / "journal.lock")
        except OSError as error:
            raise JournalError(f"{run.home} cannot be written: {error}; check the path") from error
        try:
            last_tick = self._load_previous(run)
        except BaseException:
            self._lock.release()
            raise
        self._queue = RecordQueue(self._limits.queue_records, last_tick + 1)
        self._sealer = Sealer(self._files)
        self._thread = Thread(target=self._run, name="trimtab-journal", daemon=True)
        self._thread.start()
        _writers.add(self)

    @property
    def dropped(self) -> int:
        """How many records were dropped by a full queue, or came after the end."""
        return self._queue.dropped

    @property
    def error(self) -> Exception | None:
        """The last error on the way to the disk; None if there was none."""
        return self._error or self._sealer.error

    def append(
        self,
        step: int,
        signals: Mapping[str, float],
        attempt: int = 0,
        data_position: int = NO_POSITION,
    ) -> int:
        """Append one record; returns its tick."""
        return self._queue.put_record(step, signals, attempt, data_position)

    def event(self, kind: str, step: int, **facts: Any) -> None:
        """Append something that happened before the next record; the facts are stored as JSON."""
        self.add_event(kind, step, facts)

    def add_event(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        """Append an event whose facts may have any names."""
        if kind.startswith(RESERVED):
            raise JournalError(f"event names that start with {RESERVED} are reserved, got {kind!r}")
        self._queue.put_event(kind, step, to_jsonable(facts))

    def quality(self, name: str, quality: Quality) -> None:
        """Set how far a signal can be trusted; it can only get worse."""
        if quality < self._qualities.get(name, Quality.RAW):
            self._qualities[name] = quality
            self._queue.put_entry({"kind": "quality", "signal": name, "quality": quality.label})

    def close(self, how: str = "closed", seconds: float | None = None) -> None:
        """Write what waits and seal; gives up on a disk that does not answer in time.

        Records appended later are counted as dropped.
        """
        if self._closed:
            return
        self._closed = True
        seconds = self._limits.close_seconds if seconds is None else seconds
        self._deadline = time.monotonic() + seconds
        self._queue.put_end(how)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._error = JournalError(
                f"{self._files.folder} was not closed: the disk did not answer for {seconds:g} s; "
                "what was written so far can be read"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close("closed" if kind is None else f"raised {kind.__name__}")

    def _load_previous(self, run: RunDirectory) -> int:
        """Load the qualities and the next index of an earlier writer; returns its last tick."""
        segments, summary = open_segments(run)
        indices = self._files.indices()
        self._qualities = dict(summary.qualities)
        self._next_index = indices[-1] + 1 if indices else 0
        # A dropped record had a tick, too: no tick is given twice.
        drops = [last for _, last in summary.drops]
        last_tick = max([segment.last_tick for segment in segments] + drops, default=-1)
        if self._next_index > MAX_INDEX or last_tick >= MAX_TICK:
            raise JournalError(
                f"{run.journal} counts to file {self._next_index - 1} and tick {last_tick}, which "
                "no run reaches; choose another run directory"
            )
        return last_tick

    # From here on: methods of the writer's thread.

    def _run(self) -> None:
        try:
            # First, so that a run that is killed again and again does not pile up logs: lines are
            # slow to read, and a sealed file is checked as a whole.
            self._retry(self._seal_leftovers)
            while not self._queue.is_finished():
                self._write(self._queue.pop())
                self._queue.wait(self._limits.flush_seconds)
            self._finish_log()
            self._retry(self._seal_leftovers)
        except _GaveUp:
            pass  # the error of the disk is in self._error
        except Exception as error:
            self._error = error
        finally:
            self._queue.stop()
            if self._log is not None:
                self._log.close()
            self._sealer.close()
            self._lock.release()

    def _write(self, items: list[Packed | Entry]) -> None:
        for item in items:
            if self._log is None:
                self._log = self._retry(self._open_segment)
            self._log.add(item)
            if len(self._log.rows) >= self._segment_records:
                self._finish_log()
        if self._log is not None:
            self._retry(self._log.flush)

    def _open_segment(self) -> OpenSegment:
        self._files.folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                log = OpenSegment(self._files, self._next_index, dict(self._qualities))
            except FileExistsError:  # never write to a file that this writer did not create
                self._next_index += 1
            else:
                self._next_index += 1
                return log

    def _finish_log(self) -> None:
        """Complete the open segment and hand it to the sealer; only then may the next one start."""
        if self._log is not None:
            self._retry(self._log.flush)
            self._log.close()
            self._sealer.seal(self._log)
            self._log = None

    def _seal_leftovers(self) -> None:
        """Hand to the sealer what an earlier writer, or a failed sealing, left open."""
        for index in self._files.indices():
            if self._files.log(index).exists():
                self._sealer.seal_leftover(index)

    def _retry(self, attempt: Callable[[], _Result]) -> _Result:
        """Try until the disk works; meanwhile the queue fills up, and what it drops is counted."""
        wait = _MIN_WAIT
        while True:
            try:
                return attempt()
            except OSError as error:
                self._error = error
                if time.monotonic() + wait >= self._deadline:
                    raise _GaveUp from error
                time.sleep(wait)
                wait = min(2 * wait, _MAX_WAIT)

    def _stop_in_child(self) -> None:
        """Stop in a forked child: it has no writer thread, and the lock is the parent's."""
        self._closed = True
        self._queue.stop_in_child()
        self._lock.release()


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _stop_all_in_child() -> None:
    # A data loader worker that outlives a killed trainer must not keep its lock.
    for writer in _writers:
        writer._stop_in_child()


os.register_at_fork(after_in_child=_stop_all_in_child)
