"""Story: what the notes of a journal say when they are read from first to last."""

from collections.abc import Iterable

from trimtab.core.block import Event
from trimtab.core.signals import Quality
from trimtab.journal.format.damage import Damage, DamageKind
from trimtab.journal.format.entries import SCHEMA
from trimtab.journal.format.lines import Entry
from trimtab.journal.read.part import Part

RESERVED = "journal."
"""Kinds of events that begin so are the journal's own."""

UNKNOWN_EVENT = RESERVED + "unknown"
"""The kind of the event that holds what this version does not understand."""


class Story:
    """Events, qualities, drops and the end of a run, gathered from its notes."""

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
        """How many records were given a tick but not written."""
        return sum(last - first + 1 for first, last in self.drops)

    def take(self, part: Part) -> None:
        """Take in the next part of the journal: what is wrong with it, and what its notes say."""
        self.damage.extend(part.damage)
        self._meet_schema(part.schema, part.file)
        self._tell(part.notes)

    def _tell(self, notes: Iterable[Entry]) -> None:
        # They have been understood, so they are safe to take apart.
        for note in notes:
            match note["kind"]:
                case "segment":
                    self.ended = None  # whoever ended before, the run went on
                    for signal, label in note["qualities"].items():
                        self._trust(signal, Quality.parse(label))
                case "event":
                    self._happened(note["event"], note, note["facts"])
                case "unknown":
                    self._happened(UNKNOWN_EVENT, note, note["line"])
                case "quality":
                    self._trust(note["signal"], Quality.parse(note["quality"]))
                case "dropped" if note["count"] > 0:
                    first = note["first_tick"]
                    self.drops.append((first, first + note["count"] - 1))
                case "end":
                    self.ended = note["how"]
                case "damage" if told := Damage.from_dict(note["damage"]):
                    self.damage.append(told)

    def _trust(self, signal: str, quality: Quality) -> None:
        # The worst that was said stands.
        worst = min(quality, self.qualities.get(signal, Quality.RAW))
        if worst < Quality.RAW:
            self.qualities[signal] = worst

    def _meet_schema(self, schema: int, file: str) -> None:
        self.schema = max(self.schema, schema)
        if schema > SCHEMA:
            self.damage.append(
                Damage(
                    kind=DamageKind.NEWER_SCHEMA,
                    file=file,
                    sentence=(
                        f"{file} has schema {schema} and this trimtab knows up to {SCHEMA}: it is "
                        "read as far as understood; update trimtab to read all of it"
                    ),
                )
            )

    def _happened(self, kind: str, note: Entry, facts: Entry) -> None:
        self.events.append(Event(kind=kind, tick=note["tick"], step=note["step"], facts=facts))
