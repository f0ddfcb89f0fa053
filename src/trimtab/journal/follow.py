"""Follower: what is new in a journal since the last call, while another process writes it."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Self

from trimtab.core.block import Block
from trimtab.journal.assembly import Segment, assemble
from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import JournalFiles, open_regular
from trimtab.journal.lines import Damage
from trimtab.journal.log_segment import LogParser, LogSegment
from trimtab.journal.sealed_segment import SealedSegment
from trimtab.journal.segments import MAX_LOG_BYTES, EntrySummary, open_sealed, unreadable

_PIECE = 2**20
"""Bytes read at once from an open file."""

PIECE_RECORDS = 2**18
"""Records at once, for who follows a journal from its first record and adds it up. Chosen: their
steps and ticks take 8 MB, whatever the length of the run."""

_PIECE_BYTES = 2**25
"""Columns of a piece that together are larger than this stay on disk until they are asked for.
Source: one file of a journal with 200 signals has 26 MB."""


class Follower:
    """Delivers each record and event of a journal once, in order, as they arrive.

    Each segment is read exactly once: as a log, kept open to its end even if it is sealed
    meanwhile, or as a sealed segment. So nothing is delivered twice and nothing is missed.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._files = JournalFiles(run.journal)
        self._summary = EntrySummary()
        self._done = -1  # the last segment that was read to its end
        self._tail: _Tail | None = None
        self._last_tick = -1
        self.has_more = False
        """Whether the last call of `poll` may have left something for the next one."""

    @property
    def damage(self) -> tuple[Damage, ...]:
        return tuple(self._summary.damage)

    @property
    def dropped(self) -> int:
        return self._summary.dropped

    @property
    def ended(self) -> str | None:
        """How the writer ended; None while it runs or if it was killed."""
        return self._summary.ended

    def poll(self, max_records: int | None = None) -> Block:
        """Return the records and events since the last call, at first the whole journal.

        With `max_records`, no further file is opened once there are as many records, and
        `has_more` is set. A journal that is larger than memory is not searched for damage.
        """
        summary, segments, rows = self._summary, [], 0
        summary.events.clear()
        self.has_more = False
        while (segment := self._next_segment()) is not None:
            summary.add(segment)
            segments.append(segment)
            rows += segment.rows
            if max_records is not None and rows >= max_records:
                self.has_more = True
                break
        block, damage = assemble(
            segments,
            events=summary.events,
            qualities=summary.qualities,
            find_damage=False,
            max_bytes=None if max_records is None else _PIECE_BYTES,
        )
        summary.damage.extend(damage)
        if len(block) and block.tick[0] <= self._last_tick:
            # Only a journal with files out of order gets here: nothing is delivered twice.
            block = replace(block[block.row_of(self._last_tick + 1) :], events=block.events)
        if len(block):
            self._last_tick = int(block.tick[-1])
        return block

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _next_segment(self) -> Segment | None:
        """Return what is new in the next segment with something new; None if nothing is."""
        if self._tail is None:
            index = self._after(self._done)
            if index is None:
                return None
            found = open_sealed(self._files.sealed(index))
            if isinstance(found, SealedSegment):
                self._done = index
                return found
            log = self._files.log(index)
            try:
                self._tail = _Tail(log, index, self._last_tick)
            except FileNotFoundError:
                # Either it was sealed just now, and the next call finds it, or only the sealed file
                # is there and cannot be read.
                return None if found is None else self._skip(index, found)
            except OSError as error:
                return self._skip(index, unreadable(log, error))
        return self._read_tail(self._tail)

    def _read_tail(self, tail: "_Tail") -> Segment | None:
        # Checked before reading: nothing is added to a file that has a successor.
        finished = self._files.sealed(tail.index).exists() or self._after(tail.index) is not None
        try:
            segment = tail.read(finished)
        except OSError as error:
            return self._skip(tail.index, unreadable(tail.path, error))
        if finished:
            self._done = tail.index
            self.close()
        elif not (segment.rows or segment.entries or segment.damage):
            return None
        return segment

    def _skip(self, index: int, damage: Damage) -> Segment:
        self._done = index
        self.close()
        return LogSegment(file=damage.file, block=Block.empty(), entries=(), damage=(damage,))

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
        self._file = open_regular(path)

    def read(self, finished: bool) -> LogSegment:
        """Parse and return what was appended since the last call."""
        if os.fstat(self._file.fileno()).st_size > MAX_LOG_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_LOG_BYTES:,} bytes", str(self.path))
        while data := os.pread(self._file.fileno(), _PIECE, self._parser.fed):
            self._parser.feed(data)
        if finished:
            self._parser.finish()
        return self._parser.pop()

    def close(self) -> None:
        self._file.close()
