"""Sealing: a finished log is rewritten as columns, and only then removed.

On a separate thread, because sealing waits for the disk (fsync) and new records must not.
"""

import os
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread

from trimtab.core.block import Block
from trimtab.core.errors import JournalError
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.format.lines import Entry
from trimtab.journal.read.log_segment import LogSegment
from trimtab.journal.read.open_segments import open_segment
from trimtab.journal.read.sealed_segment import SealedSegment
from trimtab.journal.write.open_segment import OpenSegment
from trimtab.journal.write.sealed_segment import write_segment

_MAX_IN_MEMORY = 2
"""Finished segments kept in memory until they are sealed; others are read back from disk."""


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
        """Seal a segment that was just finished."""
        self._jobs.put(log if self._jobs.qsize() < _MAX_IN_MEMORY else log.index)

    def seal_leftover(self, index: int) -> None:
        """Seal a log that was left over."""
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
