"""EntrySummary: what the entries of a journal add up to, from first to last."""

from collections.abc import Iterable

from trimtab.core.block import Event
from trimtab.core.signals import Quality
from trimtab.journal.format.damage import Damage, DamageKind
from trimtab.journal.format.entries import SCHEMA
from trimtab.journal.format.lines import Entry
from trimtab.journal.read.segment import Segment

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
            self.damage.append(
                Damage(
                    kind=DamageKind.NEWER_SCHEMA,
                    file=file,
                    sentence=(
                        f"{file} has schema {schema} and this trimtab knows up to {SCHEMA}: it is "
                        "read as far as it is understood; update trimtab to read all of it"
                    ),
                )
            )

    def _add_event(self, kind: str, entry: Entry, facts: Entry) -> None:
        self.events.append(Event(kind=kind, tick=entry["tick"], step=entry["step"], facts=facts))
