"""The log that is being written, and its sealing: rewritten as columns, and only then removed.

Sealing has a thread of its own, because it waits for the disk (fsync) and new records must not.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from threading import Thread

from trimtab.core.block import Block
from trimtab.core.errors import JournalError
from trimtab.core.signals import Quality
from trimtab.journal.files import JournalFiles
from trimtab.journal.lines import SCHEMA, Entry, encode
from trimtab.journal.log_segment import LogSegment
from trimtab.journal.record_queue import PackedRows, RecordLayouts
from trimtab.journal.sealed_segment import SealedSegment, write_segment
from trimtab.journal.segments import open_segment

_MAX_IN_MEMORY = 2
"""Finished segments kept in memory until they are sealed; others are read back from disk."""


class OpenSegment:
    """The file that is being written, and its content in memory, to be sealed later.

    Lines are added, then flushed; what could not be written is kept.
    """

    def __init__(
        self,
        files: JournalFiles,
        index: int,
        qualities: Mapping[str, Quality],
        layouts: RecordLayouts,
    ) -> None:
        self.index = index
        self.rows = PackedRows()
        self._layouts = layouts
        self.entries: list[Entry] = []
        self._pending = bytearray()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(files.log(index), flags, 0o644)
        labels = {name: quality.label for name, quality in qualities.items()}
        self.add({"kind": "segment", "schema": SCHEMA, "index": index, "qualities": labels})

    def add(self, item: bytes | Entry) -> None:
        """Add a packed record or an entry; the next flush writes it."""
        if isinstance(item, bytes):
            layout = self._layouts.of_record(item)
            self.rows.add(layout, item)
            self._pending += layout.line(item)
        else:
            entry = item | {"note": len(self.entries)}
            self.entries.append(entry)
            self._pending += encode(entry)

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
        """Close the file."""
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
