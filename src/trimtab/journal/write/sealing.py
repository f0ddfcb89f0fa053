"""Sealing: a finished log becomes columns, and only then goes.

On a thread of its own, because sealing waits for the disk (fsync) and the records of the next
seconds must not wait with it.
"""

import os
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread

from trimtab.core.block import Block
from trimtab.core.errors import JournalError
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.format.lines import Entry
from trimtab.journal.read.logfile import LogPart
from trimtab.journal.read.opening import open_index
from trimtab.journal.read.sealed import SealedFile
from trimtab.journal.write.openlog import OpenLog
from trimtab.journal.write.segment import write_segment

_WAITING = 2
"""Finished files that are kept in memory until they are sealed; more are read again from disk."""


def seal(files: JournalFiles, index: int, block: Block, notes: Sequence[Entry]) -> None:
    """Write the sealed file of a segment, prove it, and remove the log."""
    draft, sealed = files.draft(index), files.sealed(index)
    try:
        write_segment(draft, block, notes)
        if not SealedFile(draft).is_whole():
            raise JournalError(f"{draft} does not read back as it was written; check the disk")
        draft.replace(sealed)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(files)
    files.log(index).unlink(missing_ok=True)


def settle(files: JournalFiles, index: int) -> None:
    """Seal a log that an earlier writer left behind, from what can be read of it."""
    match open_index(files, index, []):
        case [SealedFile()]:  # the writer was killed between sealing and removing the log
            files.log(index).unlink(missing_ok=True)
        case [LogPart() as log]:
            told = [{"kind": "damage", "damage": damage.to_dict()} for damage in log.damage]
            seal(files, index, log.block, [*log.notes, *told])
        case [LogPart(damage=()) as log, _]:  # the sealed file is damaged, the log is not
            seal(files, index, log.block, log.notes)


class Sealer:
    """Seals finished logs one after the other; a log that cannot be sealed stays a log."""

    def __init__(self, files: JournalFiles) -> None:
        self.error: Exception | None = None
        self._files = files
        self._jobs: SimpleQueue[OpenLog | int | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="trimtab-sealer", daemon=True)
        self._thread.start()

    def seal(self, log: OpenLog) -> None:
        """Seal a log that was just finished."""
        self._jobs.put(log if self._jobs.qsize() < _WAITING else log.index)

    def settle(self, index: int) -> None:
        """Seal a log that was left behind."""
        self._jobs.put(index)

    def close(self) -> None:
        """Finish all that was asked for."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, OpenLog):
                    seal(self._files, job.index, job.rows.block(), job.notes)
                else:
                    settle(self._files, job)
            except Exception as error:
                # Harmless: the log is complete and is read as it is. The next writer tries again.
                self.error = error


def _sync_folder(files: JournalFiles) -> None:
    descriptor = os.open(files.folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
