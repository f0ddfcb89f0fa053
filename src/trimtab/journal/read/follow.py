"""Follower: what is new in a journal since the last look, while another process writes it."""

import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from trimtab.core.block import Block
from trimtab.journal.directory import RunDirectory
from trimtab.journal.format.damage import Damage
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.read.assembly import assemble
from trimtab.journal.read.logfile import LogParser, LogPart
from trimtab.journal.read.opening import open_sealed, unreadable
from trimtab.journal.read.part import Part
from trimtab.journal.read.sealed import SealedFile
from trimtab.journal.read.story import Story

_PIECE = 2**20
"""Bytes read at once from an open file."""


class Follower:
    """Delivers each record and event of a journal once, in order, as they come.

    Each file is read exactly once: as a log, held open to its end even if it is sealed meanwhile,
    or as a sealed file. So nothing comes twice and nothing falls between.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._files = JournalFiles(run.journal)
        self._story = Story()
        self._done = -1  # the last file that was read to its end
        self._tail: _Tail | None = None
        self._last_tick = -1

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What was found damaged so far."""
        return tuple(self._story.damage)

    @property
    def dropped(self) -> int:
        """Records that the writer told it could not get rid of."""
        return self._story.dropped

    @property
    def ended(self) -> str | None:
        """How the writer ended; None while it runs, and if it was killed."""
        return self._story.ended

    def poll(self) -> Block:
        """The records and events since the last call; all of the journal the first time."""
        story, parts = self._story, []
        story.events.clear()
        while (part := self._next_part()) is not None:
            story.take(part)
            parts.append(part)
        block, damage = assemble(parts, events=story.events, qualities=story.qualities)
        story.damage.extend(damage)
        if len(block) and block.tick[0] <= self._last_tick:
            # Only a journal with files out of order gets here: what was delivered stays delivered.
            block = replace(block[block.row_of(self._last_tick + 1) :], events=block.events)
        if len(block):
            self._last_tick = int(block.tick[-1])
        return block

    def close(self) -> None:
        """Let go of the file that is being followed."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _next_part(self) -> Part | None:
        """What is new in the next file that has something new, None if there is nothing."""
        if self._tail is None:
            index = self._after(self._done)
            if index is None:
                return None
            found = open_sealed(self._files.sealed(index))
            if isinstance(found, SealedFile):
                self._done = index
                return found
            log = self._files.log(index)
            try:
                self._tail = _Tail(log, index, self._last_tick)
            except FileNotFoundError:
                # Either it was sealed in this very moment, and the next call finds it, or the
                # sealed file is all there is and cannot be read.
                return None if found is None else self._skip(index, found)
            except OSError as error:
                return self._skip(index, unreadable(log, error))
        return self._read_tail(self._tail)

    def _read_tail(self, tail: "_Tail") -> Part | None:
        # Asked before reading: a file that has a successor has no more to come.
        finished = self._files.sealed(tail.index).exists() or self._after(tail.index) is not None
        try:
            part = tail.read(finished)
        except OSError as error:
            return self._skip(tail.index, unreadable(tail.path, error))
        if finished:
            self._done = tail.index
            self.close()
        elif not (part.rows or part.notes or part.damage):
            return None
        return part

    def _skip(self, index: int, told: Damage) -> Part:
        """Leave a file behind that cannot be read."""
        self._done = index
        self.close()
        return LogPart(file=told.file, block=Block.empty(), notes=(), damage=(told,))

    def _after(self, index: int) -> int | None:
        try:
            return self._files.after(index)
        except OSError:  # a folder that cannot be listed now may be listed at the next call
            return None


class _Tail:
    """The open file that is being followed."""

    def __init__(self, path: Path, index: int, after: int) -> None:
        self.path = path
        self.index = index
        self._parser = LogParser(path.name, after)
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, finished: bool) -> LogPart:
        """What has come since the last time."""
        while data := os.pread(self._descriptor, _PIECE, self._parser.fed):
            self._parser.feed(data)
        if finished:
            self._parser.finish()
        return self._parser.take()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
