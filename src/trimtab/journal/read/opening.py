"""Open the files of a journal: sealed ones by their header, open ones line by line."""

from itertools import pairwise
from pathlib import Path

from trimtab.core.errors import JournalError
from trimtab.journal.directory import RunDirectory
from trimtab.journal.format.damage import Damage, DamageKind
from trimtab.journal.format.files import JournalFiles
from trimtab.journal.read.logfile import LogParser, LogPart
from trimtab.journal.read.part import Part
from trimtab.journal.read.sealed import SealedFile
from trimtab.journal.read.story import Story

_TRIES = 3
"""A log that is gone was sealed a moment ago: the second look finds it, the third is for luck."""


def open_parts(run: RunDirectory) -> tuple[list[Part], Story]:
    """The files of a journal in order, opened, and what their notes say."""
    files = JournalFiles(run.journal)
    story = Story()
    opened: list[Part] = []
    try:
        indices = files.indices()
    except OSError as error:
        raise JournalError(f"{run.journal} cannot be listed: {error}; check the path") from error
    for before, index in pairwise([-1, *indices]):
        if index > before + 1:
            story.damage.append(_missing(before + 1, index - 1))
        parts = open_index(files, index, story.damage)
        for part in parts[:1]:
            story.take(part)
        for part in parts[1:]:  # the same file, sealed: its notes would say the same again
            story.damage.extend(part.damage)
        opened.extend(parts)
    return opened, story


def open_index(files: JournalFiles, index: int, damage: list[Damage]) -> list[Part]:
    """The parts of one segment: one, or two if it was sealed badly and its log is still there."""
    for _ in range(_TRIES):
        sealed = open_sealed(files.sealed(index))
        log = _open_log(files.log(index))
        if sealed is not None or log is not None:
            break
    damage.extend(found for found in (sealed, log) if isinstance(found, Damage))
    if isinstance(sealed, SealedFile) and isinstance(log, LogPart):
        # The log first: where the sealed file has lost a value, the record of the log counts.
        return [sealed] if sealed.is_whole() else [log, sealed]
    return [found for found in (sealed, log) if isinstance(found, SealedFile | LogPart)]


def open_sealed(path: Path) -> SealedFile | Damage | None:
    """The sealed file at a path, what is wrong with it, or None if there is none."""
    try:
        return SealedFile(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return unreadable(path, error)


def _open_log(path: Path) -> LogPart | Damage | None:
    parser = LogParser(path.name)
    try:
        parser.feed(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return unreadable(path, error)
    parser.finish()
    return parser.take()


def _missing(first: int, last: int) -> Damage:
    names = f"{first:08d}" if first == last else f"{first:08d} to {last:08d}"
    return Damage(
        kind=DamageKind.MISSING_FILE,
        file=f"{first:08d}",
        sentence=f"the journal lacks its file {names}, and all that stood there",
    )


def unreadable(path: Path, error: Exception) -> Damage:
    """What is told of a file that cannot be read at all."""
    return Damage(
        kind=DamageKind.UNREADABLE,
        file=path.name,
        sentence=f"{path.name} cannot be read ({error}); what stands only there is lost",
    )
