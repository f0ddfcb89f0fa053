"""Opens the segments of a journal: sealed ones by their header, open ones line by line.

`EntrySummary` is what their entries add up to, from first to last.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from trimtab.core.block import Event
from trimtab.core.errors import JournalError
from trimtab.core.signals import Quality
from trimtab.journal.assembly import Segment
from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import JournalFiles, read_regular
from trimtab.journal.lines import SCHEMA, Damage, DamageKind, Entry
from trimtab.journal.log_segment import LogParser, LogSegment
from trimtab.journal.sealed_segment import SealedSegment

RESERVED = "journal."
"""Kinds of events with this prefix are reserved for the journal."""

UNKNOWN_EVENT = RESERVED + "unknown"
"""The kind of the event that holds what this version does not understand."""


class EntrySummary:
    """Events, qualities, drops and the end of a run, collected from its entries."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.qualities: dict[str, Quality] = {}
        self.drops: list[tuple[int, int]] = []
        """First and last tick of each run of dropped records."""
        self.ended: str | None = None
        """How the writer ended; None while it runs, and if it was killed."""
        self.schema = SCHEMA
        self.damage: list[Damage] = []

    @property
    def dropped(self) -> int:
        """How many records were assigned a tick but not written."""
        return sum(last - first + 1 for first, last in self.drops)

    def add(self, segment: Segment) -> None:
        """Add the next segment of the journal: its damage and its entries."""
        self.damage.extend(segment.damage)
        self._add_schema(segment.schema, segment.file)
        self._add_entries(segment.entries)

    def _add_entries(self, entries: Iterable[Entry]) -> None:
        # They were parsed, so their fields have the right types.
        for entry in entries:
            match entry["kind"]:
                case "segment":
                    self.ended = None  # an earlier writer ended, and the run went on
                    for signal, label in entry["qualities"].items():
                        self._add_quality(signal, Quality.parse(label))
                case "event":
                    self._add_event(entry["event"], entry, entry["facts"])
                case "unknown":
                    self._add_event(UNKNOWN_EVENT, entry, entry["line"])
                case "quality":
                    self._add_quality(entry["signal"], Quality.parse(entry["quality"]))
                case "dropped" if entry["count"] > 0:
                    first = entry["first_tick"]
                    self.drops.append((first, first + entry["count"] - 1))
                case "end":
                    self.ended = entry["how"]
                case "damage" if damage := Damage.from_dict(entry["damage"]):
                    self.damage.append(damage)

    def _add_quality(self, signal: str, quality: Quality) -> None:
        # The worst one counts.
        worst = min(quality, self.qualities.get(signal, Quality.RAW))
        if worst < Quality.RAW:
            self.qualities[signal] = worst

    def _add_schema(self, schema: int, file: str) -> None:
        self.schema = max(self.schema, schema)
        if schema > SCHEMA:
            sentence = (
                f"{file} has schema {schema} and this trimtab knows up to {SCHEMA}: it is "
                "read as far as it is understood; update trimtab to read all of it"
            )
            newer = Damage(kind=DamageKind.NEWER_SCHEMA, file=file, sentence=sentence)
            self.damage.append(newer)

    def _add_event(self, kind: str, entry: Entry, facts: Entry) -> None:
        self.events.append(Event(kind=kind, tick=entry["tick"], step=entry["step"], facts=facts))


MAX_LOG_BYTES = 2**30
"""Bytes of an open segment. Chosen: 64 kB for each of its 16,384 records, a thousand signals."""

_TRIES = 3
"""A log that is gone was sealed a moment ago: the second try finds it, the third is a reserve."""


def open_segments(run: RunDirectory) -> tuple[list[Segment], EntrySummary]:
    """Open the segments of a journal in order, and sum up their entries."""
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
    """Open one segment: twice, log and sealed file, if it was sealed badly and its log exists."""
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
    """Open a sealed segment; return what is wrong with it, or None if there is no such file."""
    try:
        return SealedSegment(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return unreadable(path, error)


def _read_log_segment(path: Path) -> LogSegment | Damage | None:
    parser = LogParser(path.name)
    try:
        parser.feed(read_regular(path, MAX_LOG_BYTES))
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
    return Damage(
        kind=DamageKind.UNREADABLE,
        file=path.name,
        sentence=f"{path.name} cannot be read ({error}); what was only there is lost",
    )
