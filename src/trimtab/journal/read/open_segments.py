"""Opens the segments of a journal: sealed ones by their header, open ones line by line."""

from itertools import pairwise
from pathlib import Path

from trimtab.core.errors import JournalError
from trimtab.journal.directory import RunDirectory
from trimtab.journal.format.damage import Damage, DamageKind
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.read.entry_summary import EntrySummary
from trimtab.journal.read.log_segment import LogParser, LogSegment
from trimtab.journal.read.sealed_segment import SealedSegment
from trimtab.journal.read.segment import Segment

_TRIES = 3
"""A log that is gone was sealed a moment ago: the second try finds it, the third is a reserve."""


def open_segments(run: RunDirectory) -> tuple[list[Segment], EntrySummary]:
    """The segments of a journal in order, and what their entries add up to."""
    files = JournalFiles(run.journal)
    summary = EntrySummary()
    opened: list[Segment] = []
    try:
        indices = files.indices()
    except OSError as error:
        raise JournalError(f"{run.journal} cannot be listed: {error}; check the path") from error
    for before, index in pairwise([-1, *indices]):
        if index > before + 1:
            summary.damage.append(_missing(before + 1, index - 1))
        segments = open_segment(files, index, summary.damage)
        for segment in segments[:1]:
            summary.add(segment)
        for segment in segments[1:]:  # the same segment, sealed: its entries are the same
            summary.damage.extend(segment.damage)
        opened.extend(segments)
    return opened, summary


def open_segment(files: JournalFiles, index: int, damage: list[Damage]) -> list[Segment]:
    """One segment; two readings of it if it was sealed badly and its log is still there."""
    for _ in range(_TRIES):
        sealed = open_sealed(files.sealed(index))
        log = _read_log_segment(files.log(index))
        if sealed is not None or log is not None:
            break
    damage.extend(found for found in (sealed, log) if isinstance(found, Damage))
    if isinstance(sealed, SealedSegment) and isinstance(log, LogSegment):
        # The log first: where the sealed segment has lost a value, the record of the log counts.
        return [sealed] if sealed.is_whole() else [log, sealed]
    return [found for found in (sealed, log) if isinstance(found, SealedSegment | LogSegment)]


def open_sealed(path: Path) -> SealedSegment | Damage | None:
    """The sealed segment at a path, what is wrong with it, or None if there is no such file."""
    try:
        return SealedSegment(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return unreadable(path, error)


def _read_log_segment(path: Path) -> LogSegment | Damage | None:
    parser = LogParser(path.name)
    try:
        parser.feed(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return unreadable(path, error)
    parser.finish()
    return parser.pop()


def _missing(first: int, last: int) -> Damage:
    names = f"{first:08d}" if first == last else f"{first:08d} to {last:08d}"
    return Damage(
        kind=DamageKind.MISSING_FILE,
        file=f"{first:08d}",
        sentence=f"the journal lacks its file {names} and everything in it",
    )


def unreadable(path: Path, error: Exception) -> Damage:
    """The damage of a file that cannot be read."""
    return Damage(
        kind=DamageKind.UNREADABLE,
        file=path.name,
        sentence=f"{path.name} cannot be read ({error}); what was only there is lost",
    )
